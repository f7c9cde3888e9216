"""Tables of rounds and of the seconds of the same runs, from results/rounds/*.csv.

Methods, priors and workloads that a file does not hold are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import results as lines_of
import tables_base as base
from tables_base import ROUNDS, Table, grid

ALONE = "results/rounds/h200-alone.csv"
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


class Rounds:
    """results.csv, read once."""

    def __init__(self, file: str) -> None:
        self.file, self.lines = file, lines_of.read([base.ROOT / file])
        self.last = lines_of.last_lines(self.lines)
        self.at = {(x.workload, x.label, x.target): x for x in self.lines}
        self.workloads = list(dict.fromkeys(w for w, _ in self.last))
        self.labels = {label for _, label in self.last}

    def known(self, labels: Sequence[str]) -> list[str]:
        return [label for label in labels if label in self.labels]

    def table(self, text: str) -> Table:
        return Table(text, (self.file,), origin(self.lines))

    def best(self, workload: str, labels: Sequence[str]) -> lines_of.Line | None:
        """The fewest rounds; where nobody arrives, the smallest gap."""
        found = [self.last[workload, x] for x in labels if (workload, x) in self.last]
        ran = [x for x in found if x.rounds is not None or x.status in lines_of.ENDED]
        if not ran:
            return found[0] if found else None
        return min(ran, key=lambda x: (x.rounds is None, x.rounds or x.final_gap))


def origin(lines: Sequence[lines_of.Line]) -> str:
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
