"""The tables of docs/reproduction.md, from results/paper: `python -m tests.report.reproduction_numbers` writes them."""

from pathlib import Path

import numpy as np

from auqadmm.experiments import bundle
from auqadmm.experiments.spec import CONTROLS, METHODS
from auqadmm.report import gaps
from auqadmm.report.curves import by_panel, panel_title
from auqadmm.report.images import error
from auqadmm.report.readings import MODELS, by_reading
from auqadmm.report.style import method_style
from auqadmm.report.verdicts_on_weights import correlations

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduction.md"
BEGIN, END = "<!-- numbers: begin -->\n", "<!-- numbers: end -->\n"
READINGS = {
    ("defined", "mean"): "as defined, means",
    ("defined", "sum"): "as defined, sums",
    ("released", "mean"): "as released",
}
SHORT = ("c-admm", "rb-admm", "rb-admm-paper", "ac-admm", "uq-admm", "auq-admm", *CONTROLS)


def tables(held: bundle.Bundle) -> str:
    """All of them, as Markdown."""
    parts = [_comparison(held), _rank(held), _workers(held), _weights(held), _average(held)]
    return "\n".join(parts)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _name(method: str) -> str:
    return method_style(method).short


def _comparison(held: bundle.Bundle) -> str:
    """One row per model, reading and data set: gaps after ten iterations and at the end."""
    rows = []
    for figure, model in MODELS.items():
        for reading, lines in by_reading(held.of(figure)).items():
            for panel, runs in by_panel(lines).items():
                rivals = [m for m in METHODS if m != "auq-admm"]
                times = (gaps.early, gaps.last)
                best = [min(rivals, key=lambda m, when=when: when(runs[m])) for when in times]
                pairs = zip(best, times, strict=True)
                others = " → ".join(f"{_name(m)} {gaps.number(when(runs[m]))}" for m, when in pairs)
                own, *controls = (
                    " → ".join(gaps.number(when(runs[m])) for when in times) for m in ("auq-admm", *CONTROLS)
                )
                rows.append([model, READINGS[reading], panel_title(panel), own, others, *controls])
    header = ["model", "protocol", "data", "AUQ", "best of C, RB, RB′, AC, UQ", "C at ρ = a", "permuted", "averaged"]
    return "**Comparison.** Gap after 10 iterations → at the end.\n\n" + _table(header, rows)


def _rank(held: bundle.Bundle) -> str:
    rows = []
    compared = {key: by_panel(lines)["mnist"] for key, lines in by_reading(held.of("fig-multinomial")).items()}
    for reading, lines in by_reading(held.of("fig-rank")).items():
        (runs,) = by_panel(lines).values()
        spreads = {k: gaps.spread(gaps.gap_at(r, k) for r in runs.values()) for k in gaps.shared_iterations(runs)}
        worst = max(spreads, key=lambda k: spreads[k])
        ends = [gaps.number(gaps.last(run)) for run in runs.values()]
        controls = [gaps.number(gaps.last(compared[reading][m])) for m in CONTROLS]
        rows.append([READINGS[reading], *ends, f"{spreads[worst]:.2f}, iteration {worst}", *controls])
    header = ["protocol", *(f"rank {r}" for r in (1, 5, 10, 100)), "largest ratio on the way"]
    header += ["C at ρ = a", "permuted", "averaged"]
    return "**Rank**, multinomial on MNIST. Gap at the end.\n\n" + _table(header, rows)


def _workers(held: bundle.Bundle) -> str:
    """2, 4, 8 workers: iterations to 1e-2 where all but UQ's variants get there, and gaps at the end."""
    by = {reading: by_panel(lines) for reading, lines in by_reading(held.of("fig-workers")).items()}
    rows = []
    for method in SHORT:
        cells = [_name(method)]
        counts = [gaps.reached(runs[method], 1e-2) for runs in by[("defined", "mean")].values()]
        cells.append(", ".join("–" if k is None else str(k) for k in counts))
        for reading in READINGS:
            ends = [gaps.last(runs[method]) for runs in by[reading].values()]
            factor = f" (×{gaps.number(ends[-1] / ends[0])})" if min(ends) > gaps.LEAST else ""
            cells.append(", ".join(map(gaps.number, ends)) + factor)
        rows.append(cells)
    header = ["method", "iterations to 1e-2, as defined, means", *(f"gap at the end, {r}" for r in READINGS.values())]
    return "**Workers**: 2, 4, 8 (and the factor from 2 to 8), multinomial on MNIST.\n\n" + _table(header, rows)


def _weights(held: bundle.Bundle) -> str:
    rows = []
    for model, told in (("elastic", "elastic net"), ("multinomial", "multinomial"), ("svm", "SVM")):
        cells = [told]
        for protocol in ("defined", "released"):
            arrays = held.arrays[f"weights-mnist-{model}-{protocol}"]
            table = correlations(np.asarray(arrays["weights"], float), np.asarray(arrays["averages"], float))
            right = int((table.argmax(1) == np.arange(len(table))).sum())
            cells.append(f"{np.diag(table).mean():.2f}; {right} of {len(table)}")
        rows.append(cells)
    words = "**Weights**, MNIST: mean correlation with the worker's own class average; how many are most like it."
    return words + "\n\n" + _table(["model", "as defined", "as released"], rows)


def _average(held: bundle.Bundle) -> str:
    names = {
        "weighted": "weighted, exact diagonal",
        "plain": "plain, ρ = 1",
        "rho_a": "plain, ρ = a",
        "permuted": "permuted",
        "mean": "averaged",
        "lanczos_gaussian": "Lanczos, Gaussian start",
        "lanczos_signs": "Lanczos, random signs",
    }
    rows = [
        [words, *(f"{error(held.arrays['denoising'], reading, name):.2f}" for name in names)]
        for reading, words in (("printed", "as printed"), ("masked", "with masks"))
    ]
    return "**Illustration**: relative error of the first average.\n\n" + _table(["reading", *names.values()], rows)


def written(page: str) -> str:
    """What stands between the marks."""
    return page.split(BEGIN)[1].split(END)[0]


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    fresh = tables(bundle.read(ROOT / "results"))
    PAGE.write_text(page.replace(BEGIN + written(page) + END, BEGIN + fresh + END), encoding="utf-8")


if __name__ == "__main__":
    main()
