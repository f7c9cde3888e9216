"""The page of the reproduction, as values: verdicts on top, then one chapter per figure (`content.py`)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure as Drawing

from auqadmm.comparison import GAPS
from auqadmm.paper import curves, images
from auqadmm.paper.bundle import Bundle, CurveLine
from auqadmm.paper.outcomes import by_reading, reading_words
from auqadmm.paper.spec import FIGURES, INTERVAL, PROTOCOLS, RANKS
from auqadmm.paper.verdicts import verdicts
from auqadmm.report.content import Chapter, Curve, Panel, Picture, Report, Table
from auqadmm.report.style import RC, method_style
from auqadmm.report.tables import MISSING, power

# short enough for labels of curves; the page marks controls itself
LABELS = {
    "rb-admm-paper": "RB as printed",
    "c-admm-a": "C at ρ = a",
    "auq-permuted": "AUQ permuted",
    "auq-mean": "AUQ averaged",
} | {f"auq-rank-{rank}": f"AUQ rank {rank}" for rank in RANKS}
TITLE = "Adaptive Uncertainty-Weighted ADMM, reproduced"
LEAD = (
    "Every figure of the paper in two protocols, as the text defines the experiments and as the released code runs "
    "them, at equal objective gap, with three controls in every comparison."
)
QUICK = (
    " This is the quick run, on small digits with few iterations: it shows that everything works, not what the paper's "
    "experiments say."
)


def report(bundle: Bundle, figures: Sequence[str], about: Mapping[str, Any]) -> Report:
    """The whole page."""
    chapters = [chapter for id in figures if (chapter := make_chapter(id, bundle)) is not None]
    small = bool(bundle.lines) and all(line.dataset == "digits" for line in bundle.lines)
    return Report(TITLE, LEAD + QUICK if small else LEAD, verdicts(bundle), tuple(chapters), about)


def make_chapter(id: str, bundle: Bundle) -> Chapter | None:
    """One figure; None where the bundle has nothing of it."""
    spec = FIGURES[id]()
    lines = bundle.of(id)
    pictures = tuple(_picture(drawing, title) for title, drawing in drawings(id, bundle, curves_too=False).items())
    if not lines and not pictures:
        return None
    panels = tuple(
        _panel(name, reading, runs)
        for reading, some in by_reading(lines).items()
        for name, runs in curves.by_panel(some).items()
    )
    return Chapter(id, spec.title, spec.caption, panels, pictures, _parameters(lines), _table(lines) if lines else None)


# ---------------------------------------------------------------------- files
def drawings(id: str, bundle: Bundle, curves_too: bool = True) -> dict[str, Drawing]:
    """The matplotlib figures of one figure of the paper, by the name of their file."""
    pictures: dict[str, Drawing] = {}
    title = FIGURES[id]().title
    if curves_too:
        for reading, lines in by_reading(bundle.of(id)).items():
            words = f"{title}: {reading_words(reading)}"
            stem = f"{id}-{'-'.join(reading)}"
            pictures[f"{stem}-gap"] = curves.gap_figure(lines, words)
            pictures[f"{stem}-paper"] = curves.paper_figure(lines, words)
    known = bundle.arrays
    if id == "fig-datasets":
        sets = {name.removeprefix("samples-"): known[name] for name in known if name.startswith("samples-")}
        if sets:
            pictures[id] = images.sample_images(sets)
    if id == "fig-illustration" and "denoising" in known:
        pictures[id] = images.denoising_figure(known["denoising"])
    if id == "fig-weights":
        for name, arrays in known.items():
            if name.startswith("weights-"):
                _, dataset, model, protocol = name.split("-")
                words = f"Weights in iteration 2: {_weighted(dataset, model, protocol)}"
                pictures[f"{id}-{dataset}-{model}-{protocol}"] = images.weight_figure(arrays, words)
    return pictures


def _picture(drawing: Drawing, name: str) -> Picture:
    buffer = io.BytesIO()
    with matplotlib.rc_context(RC):
        drawing.savefig(buffer, dpi=110, format="png")
    alt = {
        "fig-datasets": "Sample images, two of each class.",
        "fig-illustration": "Local models, weights and averages of the denoising example after one iteration.",
    }.get(name) or f"Weights drawn as images: {_weighted(*name.split('-')[2:])}."
    return Picture(buffer.getvalue(), alt, alt.rstrip("."))


def _weighted(dataset: str, model: str, protocol: str) -> str:
    """The method whose weights a picture shows."""
    name = {"elastic": "elastic net", "svm": "SVM"}.get(model, model)
    return f"{curves.DATASETS[dataset]}, {name}, {reading_words((protocol, 'mean'))}"


# ---------------------------------------------------------------------- curves
def _panel(name: str, reading: tuple[str, str], runs: Mapping[str, Sequence[CurveLine]]) -> Panel:
    return Panel(
        title=f"{curves.panel_title(name)}, {reading_words(reading)}",
        curves=tuple(
            Curve(
                method=method_style(method).base or method,
                label=LABELS.get(method) or method_style(method).label,
                x={axis: tuple(getattr(line, axis) for line in run) for axis in curves.X_AXES},
                y={axis: tuple(getattr(line, axis) for line in run) for axis in curves.Y_AXES},
                control=bool(run[0].control),
            )
            for method, run in runs.items()
        ),
        x_axes=curves.X_AXES,
        y_axes=curves.Y_AXES,
        log_x=tuple(curves.X_AXES),
        log_y=tuple(curves.Y_AXES),
        floors={"gap": curves.CURVE_FLOOR},
    )


def _parameters(lines: Sequence[CurveLine]) -> dict[str, str]:
    if not lines:
        return {}
    used = dict.fromkeys(line.protocol for line in lines)
    rows = {f"protocol “{name}”": PROTOCOLS[name].about for name in used}
    longest = {name: max(line.iteration for line in lines if line.protocol == name) for name in used}
    return rows | {
        "iterations run": ", ".join(f"{k} ({name})" for name, k in longest.items()),
        "start of ρ": "1 for C, RB and AC",
        "interval [a, b]": f"[{INTERVAL[0]:g}, {INTERVAL[1]:g}]",
        "a run ends early": "at a relative gap of 1e-10",
    }


def _table(lines: Sequence[CurveLine]) -> Table:
    """Rounds, bytes and seconds until each gap; the fewest of each panel marked."""
    costs = tuple(f"{what} to {power(gap)}" for gap in GAPS for what in ("rounds", "kB", "seconds"))
    header = ("panel", "method", *costs, "last gap")
    rows: list[tuple[str, ...]] = []
    best: list[tuple[int, int]] = []
    for reading, some in by_reading(lines).items():
        for name, runs in curves.by_panel(some).items():
            first = len(rows)
            reached = {method: [_first(run, gap) for gap in GAPS] for method, run in runs.items()}
            for method, hits in reached.items():
                end = runs[method][-1].gap
                cells = [cell for hit in hits for cell in _cells(hit)]
                panel = f"{curves.panel_title(name)}, {reading_words(reading)}"
                last = MISSING if end is None else f"{end:.1e}"
                rows.append((panel, method_style(method).label, *cells, last))
            for k, _ in enumerate(GAPS):
                for what, value in enumerate(("rounds", "bytes", "seconds")):
                    counts = [None if h[k] is None else getattr(h[k], value) for h in reached.values()]
                    known = [count for count in counts if count is not None]
                    best += [(first + i, 2 + 3 * k + what) for i, c in enumerate(counts) if known and c == min(known)]
    return Table(header, tuple(rows), tuple(best))


def _first(run: Sequence[CurveLine], gap: float) -> CurveLine | None:
    return next((line for line in run if line.gap is not None and line.gap <= gap), None)


def _cells(hit: CurveLine | None) -> tuple[str, str, str]:
    if hit is None:
        return MISSING, MISSING, MISSING
    return str(hit.rounds), f"{hit.bytes / 1000:.0f}", f"{hit.seconds:.2g}"
