"""The tables of docs/reproduction.md and results/paper/claims.md, from the files in results/paper.

`python -m tests.report.reproduction_numbers` writes them.
"""

import json
from pathlib import Path

import numpy as np

from auqadmm.paper import bundle, outcomes
from auqadmm.paper.curves import by_panel, panel_title
from auqadmm.paper.images import error
from auqadmm.paper.outcomes import MODELS, by_reading, compared, reading_words
from auqadmm.paper.spec import CONTROLS, METHODS
from auqadmm.paper.verdicts import ADAPTIVE, correlations, resemblance, verdicts
from auqadmm.report.style import method_style

ROOT = Path(__file__).parents[2]
PAGES = {"verdicts": ROOT / "docs" / "reproduction.md", "numbers": ROOT / "results" / "paper" / "claims.md"}
SEEDS = ROOT / "results" / "paper" / "seeds.json"
READINGS = {
    ("defined", "mean"): "as defined, means",
    ("defined", "sum"): "as defined, sums",
    ("released", "mean"): "as released",
}
SHORT = ("c-admm", "rb-admm", "rb-admm-paper", "ac-admm", "uq-admm", "auq-admm", *CONTROLS)


# what stands in the first column of the summary, by the beginning of a claim
CLAIMS = {
    "AUQ-ADMM decreases the objective fastest": "1 fastest",
    "It is the uncertainty that helps": "2 because of the uncertainty",
    "The rank of": "3 the rank does not matter",
    "AUQ-ADMM is robust": "4 robust to more splittings",
    "The weights look like": "5 weights like class averages",
    "Weighted averaging helps": "6 the first weighted average",
    "RB- and AC-ADMM improve": "7 RB and AC improve on C",
    "The weights are computed": "8 weights cost very little",
}


def summary(held: bundle.Bundle) -> str:
    """One row per claim and model: the verdict, and how many comparisons are better, equal, worse."""
    rows: dict[str, dict[str, str]] = {}
    for verdict in verdicts(held):
        name = next(short for start, short in CLAIMS.items() if verdict.claim.startswith(start))
        model = verdict.claim.split(": ")[1] if ": " in verdict.claim else ""
        told = {"elastic": "elastic net"}.get(model, model)
        place = {"denoising, as printed": "as defined, means over rows", "denoising, with masks": "with masks"}
        counts = ", ".join(map(str, verdict.counts.values()))
        holds = f"**{verdict.holds}**" if verdict.holds == "yes" else verdict.holds
        cells = rows.setdefault(f"{name}: {told}" if told else name, {})
        cells[place.get(verdict.protocol, verdict.protocol)] = f"{holds} ({counts})"
    for cells in rows.values():
        if "with masks" in cells:
            cells["as defined, means over rows"] = f"as printed: {cells['as defined, means over rows']}"
            cells["as defined, sums over rows"] = f"with masks: {cells['with masks']}"
    order = sorted(rows, key=lambda name: int(name.split()[0]))
    body = [[name, *(rows[name].get(reading_words(reading), "") for reading in READINGS)] for name in order]
    return _table(["claim", *READINGS.values()], body)


def tables(held: bundle.Bundle) -> str:
    """All of them, as Markdown."""
    parts = [_comparison(held), _adaptive(held), _rank(held), _workers(held), _weights(held), _average(held)]
    return "\n".join([*parts, _cost(held), _seeds()])


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
                times = (outcomes.early_gap, outcomes.last_gap)
                best = [min(rivals, key=lambda m, when=when: when(runs[m])) for when in times]
                pairs = zip(best, times, strict=True)
                others = " → ".join(f"{_name(m)} {outcomes.number(when(runs[m]))}" for m, when in pairs)
                own, *controls = (
                    " → ".join(outcomes.number(when(runs[m])) for when in times) for m in ("auq-admm", *CONTROLS)
                )
                ahead = _outcomes(panel, runs, "auq-admm", rivals)
                beyond = _outcomes(panel, runs, "auq-admm", tuple(CONTROLS))
                rows.append([model, READINGS[reading], panel_title(panel), own, others, ahead, *controls, beyond])
    header = ["model", "protocol", "data", "AUQ", "best of C, RB, RB′, AC, UQ", "AUQ is"]
    header += ["C at ρ = a", "permuted", "averaged", "AUQ is, to the best of these three"]
    return "**Comparison.** Gap after 10 iterations → at the end.\n\n" + _table(header, rows)


def _outcomes(panel: str, runs: dict, own: str, rivals: list[str] | tuple[str, ...]) -> str:
    return " → ".join(cell.outcome for cell in compared(panel, runs, own, rivals))


def _adaptive(held: bundle.Bundle) -> str:
    """RB, RB′ and AC against C."""
    rows = []
    for figure, model in MODELS.items():
        for reading, lines in by_reading(held.of(figure)).items():
            for panel, runs in by_panel(lines).items():
                cells = [
                    " → ".join(outcomes.number(when(runs[m])) for when in (outcomes.early_gap, outcomes.last_gap))
                    + f": {_outcomes(panel, runs, m, ('c-admm',))}"
                    for m in ADAPTIVE
                ]
                plain = " → ".join(
                    outcomes.number(when(runs["c-admm"])) for when in (outcomes.early_gap, outcomes.last_gap)
                )
                rows.append([model, READINGS[reading], panel_title(panel), plain, *cells])
    header = ["model", "protocol", "data", "C at ρ = 1", *(_name(m) for m in ADAPTIVE)]
    return "**Adaptive penalties.** Gap after 10 iterations → at the end, and what it is to C's.\n\n" + _table(
        header, rows
    )


def _cost(held: bundle.Bundle) -> str:
    """Arithmetic, bytes and seconds of an iteration of AUQ, over those of C at ρ = a."""
    rows = []
    for row in held.costs:
        reading = (row["protocol"], row["reduction"])
        panels = by_panel(by_reading(held.of(row["figure"]))[reading]).values()
        ratios = {
            what: [_each(runs["auq-admm"], what) / _each(runs["c-admm-a"], what) for runs in panels]
            for what in ("bytes", "seconds")
        }
        share, whole = (row[what] / row["plain"] for what in ("weights", "iteration"))
        cells = [MODELS[row["figure"]], READINGS[reading], str(row["rank"]), str(row["hvps"])]
        cells += [outcomes.number(share), outcomes.number(whole)]
        used = row["used"]
        cells.append(f"{max(ratios['bytes']):.2f}" if used else "")
        cells.append(f"{min(ratios['seconds']):.2g} to {max(ratios['seconds']):.2g}" if used else "")
        rows.append(cells)
    header = ["model", "protocol", "rank", "Hessian products per worker", "arithmetic of the weights"]
    header += ["arithmetic, all", "bytes", "seconds"]
    words = "**Cost** of an iteration of AUQ on MNIST; of C at ρ = a it is 1. Bytes and seconds: all three data sets."
    return words + "\n\n" + _table(header, rows)


def _each(run: list, what: str) -> float:
    return getattr(run[-1], what) / run[-1].iteration


def _seeds() -> str:
    rows = [
        [
            MODELS[row["figure"]],
            panel_title(row["panel"]),
            _name(row["method"]),
            ", ".join(f"{gap:.3g}" for gap in row["gaps"]),
            f"{outcomes.spread(row['gaps']):.3f}",
        ]
        for row in json.loads(SEEDS.read_text(encoding="utf-8"))["rows"]
    ]
    words = "**Seeds**, as defined, means: gap after 10 iterations from seeds 0, 1, 2."
    return words + "\n\n" + _table(["model", "data", "method", "gaps", "largest over smallest"], rows)


def _rank(held: bundle.Bundle) -> str:
    rows = []
    compared = {key: by_panel(lines)["mnist"] for key, lines in by_reading(held.of("fig-multinomial")).items()}
    for reading, lines in by_reading(held.of("fig-rank")).items():
        (runs,) = by_panel(lines).values()
        spreads = {
            k: outcomes.spread(outcomes.gap_at(r, k) for r in runs.values()) for k in outcomes.shared_iterations(runs)
        }
        worst = max(spreads, key=lambda k: spreads[k])
        ends = [outcomes.number(outcomes.last_gap(run)) for run in runs.values()]
        controls = [outcomes.number(outcomes.last_gap(compared[reading][m])) for m in CONTROLS]
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
        counts = [outcomes.reached(runs[method], 1e-2) for runs in by[("defined", "mean")].values()]
        cells.append(", ".join("–" if k is None else str(k) for k in counts))
        for reading in READINGS:
            ends = [outcomes.last_gap(runs[method]) for runs in by[reading].values()]
            factor = f" (×{outcomes.number(ends[-1] / ends[0])})" if min(ends) > outcomes.LEAST_GAP else ""
            cells.append(", ".join(map(outcomes.number, ends)) + factor)
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
            right = sum(cell.outcome == "better" for cell in resemblance(table))
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


PARTS = {"verdicts": summary, "numbers": tables}


def marks(part: str) -> tuple[str, str]:
    return f"<!-- {part}: begin -->\n", f"<!-- {part}: end -->\n"


def written(page: str, part: str) -> str:
    """What stands between the marks of a part."""
    begin, end = marks(part)
    return page.split(begin)[1].split(end)[0]


def main() -> None:
    held = bundle.read(ROOT / "results")
    for part, make in PARTS.items():
        begin, end = marks(part)
        page = PAGES[part].read_text(encoding="utf-8")
        page = page.replace(begin + written(page, part) + end, begin + make(held) + end)
        PAGES[part].write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
