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
import csv
import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import results as lines_of  # noqa: E402
import scaling_model  # noqa: E402
import scaling_tables  # noqa: E402
from scaling import write as write_csv  # noqa: E402

sys.path.remove(str(ROOT / "benchmarks"))

MARKED = re.compile(r"^<!-- table: ([\w-]+) -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)
ROUNDS = "results/rounds/h200.csv"
ALONE = "results/rounds/h200-alone.csv"
VSTEP = "results/rounds/vstep-h200.json"
GPU, CPU = "results/speed/h200.json", "results/speed/cpu.json"
SCALING = "results/scaling"

SHORT = (
    "mnist-elastic-mean",
    "mnist-multinomial-sum",
    "svhn-svm",
    "cifar10-elastic-mean",
    "cifar10-multinomial-sum",
)
CHOICE = (
    "digits-elastic-mean",
    "digits-multinomial-mean",
    "mnist-elastic-mean",
    "mnist-multinomial-mean",
    "mnist-svm",
    "cifar10-elastic-mean",
    "cifar10-multinomial-mean",
    "cifar10-multinomial-sum",
    "cifar10-svm",
    "mnist-svm-l2_100",
)
OURS = ("auq-lr", "auq-lr, image")
QUASI = ("lbfgs", "lbfgs-50", "lbfgs-w", "lbfgs-w, image")
FIRST = ("lbfgs", "lbfgs-50", "owl-qn", "fista")
SECOND = ("newton", "gram")
PAPER = ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm")
PROBLEMS = {
    "mnist-multinomial-mean": "MNIST multinomial, means",
    "mnist-multinomial-sum": "MNIST multinomial, sums",
    "mnist-elastic-mean": "MNIST elastic net, means",
    "mnist-svm": "MNIST SVM",
    "cifar10-multinomial-mean": "CIFAR-10 multinomial, means",
}


@dataclass(frozen=True)
class Table:
    """Markdown, the files it is made of, and which code they measured."""

    text: str
    files: tuple[str, ...]
    origin: str


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """The first `texts` columns hold words."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)) + "\n"


# ---------------------------------------------------------------------- rounds
class Rounds:
    """results.csv, read once."""

    def __init__(self, file: str) -> None:
        self.file, self.lines = file, lines_of.read([ROOT / file])
        self.last = lines_of.last_lines(self.lines)
        self.at = {(x.workload, x.label, x.target): x for x in self.lines}
        self.workloads = list(dict.fromkeys(w for w, _ in self.last))
        self.labels = {label for _, label in self.last}

    def known(self, labels: Sequence[str]) -> list[str]:
        return [label for label in labels if label in self.labels]

    def table(self, text: str) -> Table:
        return Table(text, (self.file,), _origin(self.lines))

    def best(self, workload: str, labels: Sequence[str]) -> lines_of.Line | None:
        """The fewest rounds; where nobody arrives, the smallest gap."""
        found = [self.last[workload, x] for x in labels if (workload, x) in self.last]
        ran = [x for x in found if x.rounds is not None or x.status in lines_of.ENDED]
        if not ran:
            return found[0] if found else None
        return min(ran, key=lambda x: (x.rounds is None, x.rounds or x.final_gap))


def _origin(lines: Sequence[lines_of.Line]) -> str:
    commits = ", ".join(dict.fromkeys(x.commit for x in lines))
    dates = sorted({x.date for x in lines})
    return f"commit {commits}; {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "")


def _named(line: lines_of.Line | None) -> str:
    """A cell with the method's name behind it."""
    if line is None or line.status == "not applicable":
        return lines_of.cell(line)
    name = lines_of.name_of(line.label).replace("-ADMM", "")
    return f"{lines_of.cell(line)} {name}"


def rounds_short() -> Table:
    """README's: plain problem first, the prior beside it, and the best of each kind of rival."""
    found = Rounds(ROUNDS)
    ours, second = found.known(OURS), found.known(SECOND)
    head = ["workload", *map(lines_of.name_of, ours), "best of L-BFGS, OWL-QN, FISTA"]
    head += ["Newton or Gram"] if second else []
    rows = []
    for w in SHORT:
        cells = [lines_of.cell(found.last.get((w, x))) for x in ours] + [_named(found.best(w, FIRST))]
        rows.append([w, *cells, *([_named(_second(found, w))] if second else [])])
    return found.table(grid(head, rows))


def _second(found: Rounds, workload: str) -> lines_of.Line | None:
    """Gram where it applies: the same rounds as Newton, and not a number more."""
    gram = found.last.get((workload, "gram"))
    return gram if gram is not None and gram.rounds is not None else found.last.get((workload, "newton"))


def rounds_all() -> Table:
    found = Rounds(ROUNDS)
    labels, second = found.known(OURS + QUASI), found.known(SECOND)
    head = ["workload", *map(lines_of.name_of, labels), *(["Newton or Gram"] if second else [])]
    rows = []
    for w in found.workloads:
        cells = [lines_of.cell(found.last.get((w, x))) for x in labels]
        rows.append([w, *cells, *([_named(_second(found, w))] if second else [])])
    return found.table(grid(head, rows))


def rounds_others() -> Table:
    found = Rounds(ROUNDS)
    labels = found.known(("owl-qn", "fista"))
    head = ["workload", *map(lines_of.name_of, labels), "best of the paper's five", "C-ADMM, best ρ (oracle)"]
    rows = []
    for w in found.workloads:
        cells = [lines_of.cell(found.last.get((w, x))) for x in labels]
        tuned = lines_of.cell(found.last.get((w, lines_of.TUNED)))
        rows.append([w, *cells, _named(found.best(w, PAPER)), tuned])
    return found.table(grid(head, rows))


def rounds_summary() -> Table:
    """Who arrives, and who is first: in rounds, and in numbers sent."""
    found = Rounds(ROUNDS)
    labels = found.known((*OURS, *QUASI, *SECOND, "owl-qn", "fista", *PAPER))
    arrived = {key: x for key, x in found.last.items() if key[1] in labels and x.rounds is not None}
    best: dict[str, tuple[float, float]] = {}
    for (w, _), x in arrived.items():
        rounds, numbers = best.get(w, (float("inf"), float("inf")))
        best[w] = (min(rounds, x.rounds or 0), min(numbers, x.uplink or 0))
    rows = []
    for label in labels:
        run = [w for w in found.workloads if (w, label) in found.last]
        fits = [w for w in run if found.last[w, label].status not in ("not applicable", "unavailable")]
        mine = {w: arrived[w, label] for w in fits if (w, label) in arrived}
        fewest = [sum(getattr(x, k) == best[w][i] for w, x in mine.items()) for i, k in enumerate(("rounds", "uplink"))]
        name = lines_of.name_of(label)
        rows.append([name, f"{len(run)}", f"{len(fits)}", f"{len(mine)}", *(f"{n}" for n in fewest)])
    head = ["method", "workloads run", "it applies to", "reached 1e-6", "fewest rounds", "fewest numbers"]
    return found.table(grid(head, rows))


def rounds_weak() -> Table:
    """Rounds to 1e-2, 1e-4 and 1e-6 where l2 = 1e-3."""
    found = Rounds(ROUNDS)
    labels = found.known((*OURS, "lbfgs", "lbfgs-50", *SECOND))
    rows = []
    for w in (w for w in found.workloads if w.endswith("l2_0.001")):
        rows.append([w, *(_three(found, w, label) for label in labels)])
    return found.table(grid(["workload", *map(lines_of.name_of, labels)], rows))


def _three(found: Rounds, workload: str, label: str) -> str:
    last = found.last.get((workload, label))
    if last is None or (last.rounds is None and last.status not in lines_of.ENDED):
        return lines_of.cell(last)
    lines = [found.at[workload, label, target] for target in lines_of.TARGETS]
    told = " / ".join("–" if x.rounds is None else str(x.rounds) for x in lines)
    return told if last.rounds is not None else f"{told} [{lines_of.gap(last.final_gap)} after {last.rounds_done}]"


def rounds_workers() -> Table:
    """The same rows over 2 to 50 workers."""
    found = Rounds(ROUNDS)
    labels = found.known((*OURS, "lbfgs", "fista", "newton"))
    splits = {"2": "n2", "5": "n5", "10": "iid", "20": "n20", "50": "n50"}
    rows = []
    for count, tail in splits.items():
        lines = [found.last.get((f"mnist-multinomial-sum-{tail}", label)) for label in labels]
        rows.append([count, *(lines_of.cell(line).split(" (")[0] for line in lines)])
    return found.table(grid(["workers", *map(lines_of.name_of, labels)], rows, texts=0))


def choosing() -> Table:
    """Rounds alone."""
    found = Rounds(ROUNDS)
    labels = found.known((*OURS, "lbfgs", "lbfgs-w", "owl-qn", "fista", *SECOND))
    rows = [[w, *(lines_of.cell(found.last.get((w, x))).split(" ")[0] for x in labels)] for w in CHOICE]
    return found.table(grid(["workload", *map(lines_of.name_of, labels)], rows))


def seconds() -> Table:
    """To 1e-6, with the device alone."""
    found = Rounds(ALONE)
    labels = found.known((*OURS, "lbfgs", *SECOND))

    def cell(line: lines_of.Line | None) -> str:
        if line is None or line.seconds is None:
            return lines_of.cell(line)
        return f"{line.seconds:.2f}"

    rows = [[w, *(cell(found.last.get((w, x))) for x in labels)] for w in found.workloads]
    return found.table(grid(["workload", *map(lines_of.name_of, labels)], rows))


def vstep() -> Table:
    rows = json.loads((ROOT / VSTEP).read_text(encoding="utf-8"))
    head = ["workload", "unknowns", "rounds", "ms per round, all", "v-step", "with set-up", "MiB beyond what is held"]
    made = [
        [
            row["workload"],
            f"{row['unknowns']}",
            f"{row['rounds']}",
            f"{row['round_ms']:.0f}",
            f"{row['vstep_ms_median']:.1f} ({row['vstep_ms_max']:.1f})",
            f"{row['setup_ms_max']:.1f}",
            f"{row['peak_mib']:.0f}",
        ]
        for row in rows
    ]
    return Table(grid(head, made), (VSTEP,), "; ".join(dict.fromkeys(map(_spoken, rows))))


# ---------------------------------------------------------------------- speed
def _speed(file: str) -> Mapping[str, Any]:
    found = json.loads((ROOT / file).read_text(encoding="utf-8"))
    return {part: [r for r in rows if _whole(r)] if part != "about" else rows for part, rows in found.items()}


def _whole(row: Mapping[str, Any]) -> bool:
    return "error" not in row and "skipped" not in row


def _spoken(about: Mapping[str, Any]) -> str:
    return f"commit {about['commit']}; {about['date']}" + ("; with the image prior" if about.get("prior") else "")


def _number(x: float | None) -> str:
    """Two or three figures."""
    if x is None:
        return "–"
    return f"{x:.0f}" if x >= 99.5 else f"{x:.1f}" if x >= 0.995 else f"{x:.2g}"


def iteration(file: str) -> Table:
    found = _speed(file)
    head = ["workload", "default accuracy", "a tenth of the residual", "to 1e-6, or exact", "released", "plain"]
    rows = []
    for row in found["iteration"]:
        tight = row.get("to 1e-6", row.get("exact"))
        kinds = (row["default accuracy"], row["coarse"], tight, row["released"], row["plain"])
        rows.append([PROBLEMS[row["workload"]], *map(_number, kinds)])
    return Table(grid(head, rows), (file,), _spoken(found["about"]))


def seconds_to_gap() -> Table:
    who = ("auq-lr", "lbfgs", "c-admm", "fista", "scipy L-BFGS, pooled")
    rows, origins = [], []
    for name, file in (("two cores", CPU), ("H200", GPU)):
        found = _speed(file)
        origins.append(_spoken(found["about"]))
        for row in found["gap"]:
            cells = ["" if w not in row else "> 20" if row[w] is None else _number(row[w]) for w in who]
            rows.append([f"{name}: {PROBLEMS[row['workload']]}", *cells])
    heads = ["AUQ-LR", "L-BFGS", "C-ADMM", "FISTA", "scipy's L-BFGS, pooled rows"]
    return Table(grid(["", *heads], rows), (CPU, GPU), "; ".join(dict.fromkeys(origins)))


def growth() -> Table:
    rows, origins = [], []
    both = [_speed(file) for file in (GPU, CPU)]
    for along in dict.fromkeys(row["along"] for found in both for row in found["growth"]):
        cells = []
        for found in both:
            points = [(row["value"], row["milliseconds"]) for row in found["growth"] if row["along"] == along]
            first, last = points[0], points[-1]
            few, many = (f"{p[0]:,}".replace(",", " ") for p in (first, last))
            cells += [f"{few} → {many}", f"{_number(first[1])} → {_number(last[1])}"]
        rows.append([along, *cells])
    origins = [_spoken(found["about"]) for found in both]
    head = ["", "on the H200", "ms", "on two cores", "ms"]
    return Table(grid(head, rows), (GPU, CPU), "; ".join(dict.fromkeys(origins)))


def memory() -> Table:
    found = _speed(GPU)
    methods = {"c-admm": "C-ADMM", "auq-admm": "AUQ-ADMM", "auq-lr": "AUQ-LR"}
    peaks: dict[str, dict[str, float]] = {}
    for row in found["memory"]:
        if "method" in row:
            peaks.setdefault(row["workload"], {"data": row["data, MiB"]})[row["method"]] = row["peak, MiB"]
    rows = [[PROBLEMS[w], *(f"{per[k]:.0f}" for k in ("data", *methods))] for w, per in peaks.items()]
    return Table(grid(["", "data, MiB", *methods.values()], rows), (GPU,), _spoken(found["about"]))


def peers() -> Table:
    found = _speed(CPU)
    targets = sorted({row["target"] for row in found["peers"] if "target" in row}, reverse=True)
    per: dict[str, dict[float, float]] = {}
    rows = []
    for row in found["peers"]:
        if "target" in row:
            per.setdefault(row["who"], {})[row["target"]] = row["seconds"]
    for who, reached in per.items():
        rows.append([who, *(_number(reached[t]) if t in reached else "" for t in targets)])
    for row in found["peers"]:
        if "target" not in row:  # it ended by itself, at some gap
            column = next((i for i, t in enumerate(targets) if row["gap"] > t), len(targets))
            cells = [""] * len(targets)
            cells[max(column - 1, 0)] = f"{_number(row['seconds'])} ({row['gap']:.1e})"
            rows.append([row["who"], *cells])
    return Table(grid(["", *(f"{t:g}" for t in targets)], rows), (CPU,), _spoken(found["about"]))


def single() -> Table:
    found = _speed(GPU)
    head = ["workload", "float64, ms", "float32, ms", "gap of float32 after 30 rounds"]
    rows = [
        [PROBLEMS[r["workload"]], _number(r["float64, ms"]), _number(r["float32, ms"]), lines_of.gap(r["float32, gap"])]
        for r in found["single"]
    ]
    return Table(grid(head, rows), (GPU,), _spoken(found["about"]))


# ---------------------------------------------------------------------- scaling
def scaling(name: str) -> Table:
    """What is modelled follows from measured.csv and from the rounds of the same rows over 2 to 50 workers."""
    files = {name: f"{SCALING}/{name}.csv" for name in ("measured", "modelled", "links", "server")}
    about = json.loads((ROOT / SCALING / "run.json").read_text(encoding="utf-8"))
    if name == "server":
        with (ROOT / files["server"]).open(newline="", encoding="utf-8") as file:
            text = _server(list(csv.DictReader(file)))
    else:
        read = {k: scaling_model.read(ROOT / files[k]) for k in ("measured", "modelled", "links")}
        text = scaling_tables.tables(read["measured"], read["modelled"], read["links"])[name]
    source = name if name in about["commit"] else "measured"
    used, origin = (files[source],), f"commit {about['commit'][source]}; {about['started'][:10]}"
    if name in ("modelled", "spent", "wins"):
        more = [x for x in Rounds(ROUNDS).lines if x.workload.startswith("mnist-multinomial-sum")]
        return Table(text, (*used, ROUNDS), f"{origin}; {_origin(more)}")
    return Table(text, used, origin)


def _server(rows: Sequence[Mapping[str, str]]) -> str:
    head = ["workers", "all, ms", "consensus steps with new weights, ms", "the other steps, ms", "iterations of those"]
    made = []
    for row in rows:
        new = f"{float(row['setup_ms']):.0f} in {row['setups']} steps"
        old = f"{float(row['steps_ms']):.0f} in {row['steps']} steps"
        made.append([row["workers"], f"{float(row['server_ms']):.0f}", new, old, row["cg_iterations"]])
    return grid(head, made, texts=0)


TABLES: dict[str, Callable[[], Table]] = {
    "rounds-short": rounds_short,
    "rounds": rounds_all,
    "rounds-others": rounds_others,
    "rounds-summary": rounds_summary,
    "rounds-weak": rounds_weak,
    "rounds-workers": rounds_workers,
    "choosing": choosing,
    "seconds": seconds,
    "vstep": vstep,
    "iteration-h200": lambda: iteration(GPU),
    "iteration-cpu": lambda: iteration(CPU),
    "seconds-to-gap": seconds_to_gap,
    "growth": growth,
    "memory": memory,
    "peers": peers,
    "single": single,
    **{
        f"scaling-{name}": (lambda name=name: scaling(name))
        for name in ("measured", "modelled", "spent", "wins", "links", "server")
    },
}


# ---------------------------------------------------------------------- pages
def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def block(name: str, page: Path) -> str:
    """What stands between the markers of a page."""
    if name not in TABLES:
        raise LookupError(f"{page.name}: there is no table {name!r}; there are {', '.join(TABLES)}.")
    table = TABLES[name]()
    folder = page.parent.relative_to(ROOT).as_posix()
    links = ", ".join(f"[{file}]({posixpath.relpath(file, folder)})" for file in table.files)
    return f"\n{table.text}\n*From {links}: {table.origin}.*\n\n"


def filled(page: Path) -> str:
    """The page as it should be."""
    text = page.read_text(encoding="utf-8")
    return MARKED.sub(lambda m: f"<!-- table: {m[1]} -->\n{block(m[1], page)}<!-- end -->", text)


def stale() -> list[Path]:
    """Pages that disagree with results/."""
    return [page for page in pages() if filled(page) != page.read_text(encoding="utf-8")]


def remodel() -> None:
    measured = scaling_model.read(ROOT / SCALING / "measured.csv")
    write_csv(ROOT / SCALING / "modelled.csv", scaling_model.modelled(measured))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    if given.write:
        remodel()
    wrong = stale()
    for page in wrong:
        if given.write:
            page.write_text(filled(page), encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'written' if given.write else 'disagrees with results/'}")
    return 1 if wrong and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
