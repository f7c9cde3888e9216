"""What the folder of a fit gives: `auqadmm predict`, predictions for files; `auqadmm report`, its page drawn again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.console import Console

from auqadmm.cli import outputs
from auqadmm.cli.outputs import CommandError, check_name, reason, writable_folder, writing
from auqadmm.files import atomic
from auqadmm.files.fitted_glm import FittedGLM
from auqadmm.files.model import FittedClassifier, FittedLogisticRegression, FittedModel, load
from auqadmm.files.model import read as read_model
from auqadmm.files.tabular import Roles, is_table, read
from auqadmm.words import visible

EXAMPLES = """
**Examples**

`auqadmm predict fitted new.csv`

`auqadmm predict fitted new-*.parquet --id patient --out predicted.parquet`
"""


def predict(
    folder: Annotated[Path, typer.Argument(help="Folder that auqadmm fit wrote.", metavar="DIR", show_default=False)],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files with the columns of the model, in any order; others are ignored.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write, .csv or .parquet; csv on standard output by default.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="Column that names the rows; by default that of the fit. --id '' numbers them.")
    ] = None,
    unseen: Annotated[
        str, typer.Option(help="A category that no training file had: error, or ignore (it counts as none).")
    ] = "error",
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Predict with a fitted model: labels with probabilities (logistic) or decision values (svm), or numbers.

    A model of a family gives means, with the offset or exposure in the columns that the fit had.

    One line per row, with its id or number, and its file where there are several.
    """
    if unseen not in ("error", "ignore"):
        raise typer.BadParameter(f"--unseen: there is no {unseen!r}; there are error, ignore.")
    if out is not None and out.suffix.lower() not in (".csv", ".parquet"):
        raise typer.BadParameter("--out must end in .csv or .parquet.")
    if out is not None:
        _check_out(out, [*files, folder / outputs.HISTORY])
    outputs.refuse_unfinished(folder)
    model = load(folder)
    tables = [predicted(model, path, id, unseen, len(files) > 1) for path in files]
    table = pa.concat_tables(tables, promote_options="default")
    if out is None:
        _print(table)
    else:
        _write(table, out)


def predicted(model: FittedModel, path: Path, id: str | None, unseen: str, several: bool) -> pa.Table:
    """The predictions for one file."""
    sheet = read(path, _roles(model, path, id))
    logits = model.logits(sheet, unseen)
    columns: dict[str, Any] = {"file": [_told(path)] * sheet.rows} if several else {}
    columns |= {"row": np.arange(1, sheet.rows + 1)} if sheet.ids is None else {"id": sheet.ids.tolist()}
    return pa.table({name: pa.array(values) for name, values in (columns | _answers(model, logits)).items()})


def _roles(model: FittedModel, path: Path, id: str | None) -> Roles:
    if not is_table(path):
        named = model.encoding_.names if path.suffix.lower() == ".npz" else None  # svmlight features are numbered
        return Roles(features=named, asker="the model")
    names = model.parts.roles.get("id") if id is None else id or None
    categories = tuple(c.name for c in model.encoding_.categories)
    return Roles(
        id=names,
        features=model.encoding_.names,
        categorical=categories,
        unique_ids=False,
        asker="the model",
        offset=model.parts.roles.get("offset"),
        exposure=model.parts.roles.get("exposure"),
    )


def _answers(model: FittedModel, logits: np.ndarray) -> dict[str, Any]:
    if isinstance(model, FittedGLM):
        return {"prediction": model.means(logits)}
    if not isinstance(model, FittedClassifier):
        return {"prediction": logits[:, 0]}
    answers: dict[str, Any] = {"prediction": model.labels(logits).tolist()}
    classes = model.classes_.tolist()
    if isinstance(model, FittedLogisticRegression):
        chances = model.probabilities(logits)
        return answers | {f"probability_{label}": chances[:, k] for k, label in enumerate(classes)}
    if logits.shape[1] == 1:
        return answers | {"decision": logits[:, 0]}
    return answers | {f"decision_{label}": logits[:, k] for k, label in enumerate(classes)}


def _check_out(out: Path, needed: list[Path]) -> None:
    """Check before any work: the output is writable, and no input file."""
    check_name(out)
    if not out.parent.is_dir():
        raise CommandError(f"Cannot write {visible(str(out))}: there is no folder {visible(str(out.parent))}; make it.")
    for path in needed:
        if out.exists() and path.exists() and out.samefile(path):
            raise CommandError(f"--out {visible(str(out))} would replace a file that is needed; choose another --out.")


def _told(path: Path) -> str:
    """A file's name; bytes that are no UTF-8 are written out, since csv and parquet cannot encode them."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _print(table: pa.Table) -> None:
    """csv; a terminal gets control characters written out, a pipe gets the data unchanged."""
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table, sink)
    text = sink.getvalue().to_pybytes().decode("utf-8")
    if sys.stdout.isatty():
        text = "\n".join(visible(line) for line in text.split("\n"))
    sys.stdout.write(text)


def _write(table: pa.Table, out: Path) -> None:
    try:
        with atomic.part(out.parent, out.name) as path:
            if out.suffix.lower() == ".csv":
                pa.csv.write_csv(table, path)
            else:
                pa.parquet.write_table(table, path)
            atomic.keep(path, out)
    except OSError as error:
        raise CommandError(f"Cannot write {visible(str(out))}: {reason(error)}; choose another --out.") from None


# ---------------------------------------------------------------------- report
def report(
    folder: Annotated[Path, typer.Argument(help="Folder that auqadmm fit wrote.", metavar="DIR", show_default=False)],
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Draw report.html of a fit again, from summary.json, history.parquet and the model; nothing is computed."""
    if not folder.is_dir():
        raise CommandError(f"{visible(str(folder))} is not a folder; name one that auqadmm fit wrote.")
    outputs.refuse_unfinished(folder)
    summary, rows = outputs.read_summary(folder), outputs.read_history(folder)
    parts = read_model(folder)
    try:
        with writing(folder, "make room"):
            page = outputs.write_page(writable_folder(folder), summary, rows, parts)
    except (KeyError, TypeError) as error:
        raise CommandError(f"{folder / outputs.SUMMARY} is damaged ({error}); fit again.") from None
    Console(highlight=False).print(visible(str(page)), markup=False, soft_wrap=True)
