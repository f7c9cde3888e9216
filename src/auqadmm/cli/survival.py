"""Options of Cox's model on files, and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from auqadmm.cli.options import known, option
from auqadmm.files.tabular import is_table
from auqadmm.formula.parsing import Formula
from auqadmm.problem.cox import TIES
from auqadmm.words import quoted, visible

Time = Annotated[
    str | None,
    option("Columns", "With --model cox: column of times, above zero, until the event or the end of observation."),
]
Event = Annotated[
    str | None, option("Columns", "With --model cox: column that is 1 or true for an event, 0 or false for censored.")
]
Entry = Annotated[
    str | None, option("Columns", "With --model cox: column of times from which rows are at risk, below --time.")
]
Ties = Annotated[
    str | None,
    option(
        "Model",
        "With --model cox: efron (default) or breslow, how events at the same time share those at risk.",
        autocompletion=known(TIES),
    ),
]


@dataclass(frozen=True)
class Survival:
    """What was typed for Cox's model: columns, and how ties are broken."""

    time: str | None = None
    event: str | None = None
    entry: str | None = None
    ties: str | None = None

    def refuse_without_cox(self) -> None:
        """These options belong to one model: exit code 2."""
        given = {"--time": self.time, "--event": self.event, "--entry": self.entry, "--ties": self.ties}
        wrong = next((name for name, value in given.items() if value is not None), None)
        if wrong is not None:
            raise typer.BadParameter(f"{wrong} goes with --model cox.")

    def checked(
        self, files: Sequence[Path], target: str | None, others: Mapping[str, object], formula: Formula | None
    ) -> Survival:
        """Complete, with the time on the left side of the formula where there is one; or wrong usage, exit code 2.
        `others`: options that this model does not have."""
        if target is not None:
            raise typer.BadParameter(
                "--target has no place beside --model cox: name the columns with --time and --event."
            )
        wrong = next((name for name, value in others.items() if value), None)
        if wrong is not None:
            raise typer.BadParameter(f"{wrong} has no place beside --model cox.")
        time = self.time
        if formula is not None:
            if time not in (None, formula.target):
                raise typer.BadParameter(
                    f"--time {quoted(time)} is not the left side of the formula; leave it out, or write it there."
                )
            if not formula.intercept:
                raise typer.BadParameter(
                    "--model cox has no intercept, the baseline hazards take its place: leave `0 +` or `- 1` out."
                )
            time = formula.target
        for name, value in (("--time", time), ("--event", self.event)):
            if value is None:
                raise typer.BadParameter(f"--model cox needs --time and --event: {name} is missing.")
        if self.ties not in (None, *TIES):
            raise typer.BadParameter(f"--ties: there is no {self.ties!r}; there are {', '.join(TIES)}.")
        odd = next((path for path in files if not is_table(path)), None)
        if odd is not None:
            raise typer.BadParameter(f"--model cox reads csv, tsv and parquet files; {visible(str(odd))} is none.")
        return Survival(time, self.event, self.entry, self.ties or TIES[0])
