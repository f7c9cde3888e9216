"""The tables of README.md and docs/, made from the files in results/.

    python tools/tables.py --write      put every table between its markers
    python tools/tables.py --check      say which pages disagree with results/; the exit status is 1 if one does

A page says where a table goes; what is between the markers is replaced, and ends with a line that names the files and
the commits of the code that was measured:

    <!-- table: rounds-short -->
    <!-- end -->

Methods, priors and workloads that a file does not hold are left out: nothing is shown that was not measured. --write
also makes results/scaling/modelled.csv again, which follows from measured.csv and the rounds.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

BESIDE = [str(Path(__file__).resolve().parents[k] / name) for k, name in ((0, ""), (1, "benchmarks"))]
sys.path[:0] = BESIDE
import tables_auto  # noqa: E402
import tables_base as base  # noqa: E402
import tables_rounds  # noqa: E402
import tables_scaling  # noqa: E402
import tables_speed  # noqa: E402
import tables_statistics  # noqa: E402
import tables_verdict  # noqa: E402

for folder in BESIDE:
    sys.path.remove(folder)

MARKED = re.compile(r"^<!-- table: ([\w-]+) -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)

TABLES: dict[str, Callable[[], base.Table]] = {
    "rounds-short": tables_rounds.rounds_short,
    "rounds": tables_rounds.rounds_all,
    "rounds-others": tables_rounds.rounds_others,
    "rounds-summary": tables_rounds.rounds_summary,
    "rounds-weak": tables_rounds.rounds_weak,
    "rounds-workers": tables_rounds.rounds_workers,
    "choosing": tables_rounds.choosing,
    "seconds": tables_rounds.seconds,
    "vstep": tables_speed.vstep,
    "iteration-h200": lambda: tables_speed.iteration(tables_speed.GPU),
    "seconds-to-gap": tables_speed.seconds_to_gap,
    "growth": tables_speed.growth,
    "memory": tables_speed.memory,
    "single": tables_speed.single,
    "verdict": tables_verdict.verdict,
    "coverage": tables_statistics.coverage,
    "auto-tables": lambda: tables_auto.auto("results/auto/cpu.json"),
    "auto-images": lambda: tables_auto.auto("results/auto/h200.json"),
    "seconds-tables": tables_auto.seconds,
    **{
        f"scaling-{name}": (lambda name=name: tables_scaling.scaling(name))
        for name in ("measured", "modelled", "spent", "wins", "links", "server")
    },
}


# ---------------------------------------------------------------------- pages
def pages() -> list[Path]:
    return [base.ROOT / "README.md", *sorted((base.ROOT / "docs").rglob("*.md"))]


def block(name: str, page: Path) -> str:
    """What stands between the markers of a page."""
    if name not in TABLES:
        raise LookupError(f"{page.name}: there is no table {name!r}; there are {', '.join(TABLES)}.")
    table = TABLES[name]()
    folder = page.parent.relative_to(base.ROOT).as_posix()
    links = ", ".join(f"[{file}]({posixpath.relpath(file, folder)})" for file in table.files)
    return f"\n{table.text}\n*From {links}: {table.origin}.*\n\n"


def filled(page: Path) -> str:
    """The page as it should be."""
    text = page.read_text(encoding="utf-8")
    return MARKED.sub(lambda m: f"<!-- table: {m[1]} -->\n{block(m[1], page)}<!-- end -->", text)


def stale() -> list[Path]:
    """Pages that disagree with results/."""
    return [page for page in pages() if filled(page) != page.read_text(encoding="utf-8")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    if given.write:
        tables_scaling.remodel()
    wrong = stale()
    for page in wrong:
        if given.write:
            page.write_text(filled(page), encoding="utf-8")
        print(f"{page.relative_to(base.ROOT)}: {'written' if given.write else 'disagrees with results/'}")
    return 1 if wrong and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
