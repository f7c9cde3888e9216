"""A report like those that experiments make, and a browser to look at it."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from auqadmm.report.content import Chapter, ClaimVerdict, Curve, Panel, Picture, Report, Table
from auqadmm.report.page import write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
X_AXES = {"iterations": "iterations", "bytes": "bytes per worker", "seconds": "seconds"}
Y_AXES = {
    "gap": "relative objective gap",
    "objective": "objective",
    "primal": "primal residual",
    "dual": "dual residual",
}
SERIES = (
    ("c-admm", "C-ADMM", False, 0.965),
    ("rb-admm", "RB-ADMM", False, 0.93),
    ("ac-admm", "AC-ADMM", False, 0.91),
    ("uq-admm", "UQ-ADMM", False, 0.9),
    ("auq-admm", "AUQ-ADMM", False, 0.87),
    ("auq-lr", "AUQ-LR", False, 0.7),
    ("auq-admm", "AUQ, shuffled weights", True, 0.955),
    ("scalar", "mean weight per worker", True, 0.9),
    ("l-bfgs", "L-BFGS", False, 0.88),
)


def curve(method: str, label: str, control: bool, factor: float, count: int, seed: int) -> Curve:
    """A run whose gap falls by about `factor` per iteration, down to rounding."""
    rng = np.random.default_rng(seed)
    k = np.arange(1, count + 1)
    noise = np.exp(0.12 * np.cumsum(rng.standard_normal(count)) / np.sqrt(k))
    gap = np.maximum(0.8 * factor**k * noise / np.sqrt(k), 2e-15 * rng.random(count))
    gap[rng.random(count) < 0.02 * (gap < 1e-13)] = 0.0
    return Curve(
        method,
        label,
        x={
            "iterations": tuple(k.tolist()),
            "bytes": tuple((k * 627_200).tolist()),
            "seconds": tuple(np.cumsum(0.02 + 0.01 * rng.random(count)).tolist()),
        },
        y={
            "gap": tuple(gap.tolist()),
            "objective": tuple((2310.4 * (1 + gap)).tolist()),
            "primal": tuple((3 * gap**0.5 * np.exp(0.3 * rng.standard_normal(count))).tolist()),
            "dual": tuple(v if i % 5 == 0 else None for i, v in enumerate((5 * gap**0.6 * noise).tolist())),
        },
        control=control,
    )


def panel(title: str, seed: int = 0, count: int = 250, log_x: tuple[str, ...] = ()) -> Panel:
    """Nine curves, two of them controls."""
    curves = tuple(
        curve(method, label, control, factor, count - 13 * (i % 4), seed + i)
        for i, (method, label, control, factor) in enumerate(SERIES)
    )
    return Panel(title, curves, X_AXES, Y_AXES, log_x=log_x, log_y=("gap", "primal", "dual"), floors={"gap": 1e-14})


def png(seed: int = 0) -> bytes:
    """Weights as an image, made by matplotlib."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1:1:28j, -1:1:28j]
    figure = Figure(figsize=(3.2, 2.8), layout="constrained")
    axis = figure.subplots()
    shown = axis.imshow(np.exp(-3 * ((x - rng.uniform(-0.4, 0.4)) ** 2 + y**2)) + 0.05 * rng.random((28, 28)))
    axis.set_axis_off()
    figure.colorbar(shown, ax=axis, label="weight")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90, metadata={"Software": None})
    return file.getvalue()


def table() -> Table:
    """What each method needed."""
    header = ("method", "it. to\n1e-2", "it. to\n1e-4", "it. to\n1e-6", "rounds\n1e-6", "MB up", "seconds", "status")
    rows = []
    for i, (_, label, _, _) in enumerate(SERIES):
        reached = i < 7
        counts = [str(4 + 3 * i), str(21 + 11 * i), str(60 + 17 * i) if reached else "–", str(61 + 17 * i)]
        rows.append((label, *counts, f"{9.1 + i:.1f}", f"{1.5 + 0.4 * i:.1f}", "converged" if reached else "max_iter"))
    return Table(header, tuple(rows), best=((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)))


def sample(chapters: int = 3, panels: int = 3, count: int = 250) -> Report:
    """A report with everything that a report can have."""
    names = ("Elastic net", "Multinomial regression", "Support vector machine", "Number of workers", "Weights")
    made = tuple(
        Chapter(
            id=f"fig{c + 1}",
            title=names[c % len(names)] + (" on three data sets, one class per worker" if c == 0 else ""),
            caption="Relative objective gap against what each method spends. All methods start at zero with ρ = 1 and "
            "solve their local problems to the same relative accuracy, so that only the weights differ.",
            panels=tuple(
                panel(
                    f"{name}, 10 workers × {2000 - 1000 * (p > 0)} rows", 100 * c + 10 * p, count, ("iterations",)[c:]
                )
                for p, name in zip(
                    range(panels), ("MNIST", "SVHN", "CIFAR-10", "MNIST 2", "SVHN 2", "C 2"), strict=False
                )
            ),
            parameters={"ρ⁰": "1", "rank": "5", "[a, b]": "[0.1, 1]", "iterations": "250", "ε": "1e-4 and 1e-5"},
            table=table(),
        )
        for c in range(chapters)
    )
    pictures = tuple(
        Picture(png(j), f"Weights of worker {j}: large in the middle, where digits have ink.", f"Worker {j}")
        for j in range(4)
    )
    weights = Chapter(
        "weights",
        "What the weights look like",
        "Weights of four workers as images.",
        pictures=pictures,
    )
    verdicts = (
        ClaimVerdict(
            "AUQ-ADMM needs fewer iterations than C-ADMM",
            "as defined",
            "yes",
            "2.8 × fewer to 1e-6",
            "On all three data sets and both models; the factor is smallest on SVHN.",
            "fig1",
        ),
        ClaimVerdict(
            "Uncertainty weights, not their mean, make the difference",
            "as defined",
            "no",
            "1.02 ×",
            "A scalar weight per worker with the same mean does as well within the noise of five seeds.",
            "fig2",
        ),
        ClaimVerdict(
            "Faster in seconds as well", "as released", "partly", "0.7 × to 1.9 ×", "Only where a row is dear.", "fig2"
        ),
        ClaimVerdict("Holds for hundreds of workers", "as defined", "open", "–", "Not measured yet.", "nowhere"),
    )
    about = {
        "command": "auqadmm reproduce --all",
        "device": "CPU, 2 cores",
        "seed": 0,
        "versions": {"auqadmm": "0.1.0", "torch": "2.13.0"},
        "data sets": ["MNIST", "SVHN", "CIFAR-10"],
    }
    return Report(
        "Consensus ADMM with uncertainty weights",
        "Does it pay to weigh what workers say by how sure they are? Six methods and two controls on the experiments "
        "of the paper, each claim checked as defined in the text and as released in code.",
        verdicts,
        (*made, weights),
        about,
    )


def odd() -> Report:
    """Numbers that are hard to draw: missing, not finite, zero, constant, alone, or none at all."""
    k = tuple(range(6))

    def one(y: tuple[float | None, ...], x: tuple[float | None, ...] = k, method: str = "c-admm") -> Curve:
        return Curve(method, method, {"k": x}, {"y": y})

    def on_log(title: str, *curves: Curve) -> Panel:
        return Panel(title, curves, {"k": "iterations"}, {"y": "gap"}, log_x=("k",), log_y=("y",))

    panels = (
        on_log("zero and below", one((1.0, 0.1, 0.0, -1e-3, 1e-5, 1e-6))),
        on_log("not finite", one((1.0, math.nan, 0.1, math.inf, 0.01, -math.inf)), one((1e300,) * 6, method="uq-admm")),
        on_log("not measured", one((1.0, None, None, 0.1, None, 0.01))),
        on_log("constant", one((0.5,) * 6)),
        on_log("one point", one((0.5,), (3,))),
        on_log("none finite", one((math.nan,) * 6)),
        on_log("none positive", one((0.0,) * 6)),
        on_log("no points", one((), ())),
        Panel("no curves", (), {"k": "iterations"}, {"y": "gap"}),
        Panel("not on this axis", (Curve("c-admm", "C", {"k": k}, {}),), {"k": "iterations"}, {"y": "gap"}),
        Panel("linear", (one((5.0, 4.0, None, math.nan, 2.0, 1.0)),), {"k": "iterations"}, {"y": "gap"}),
    )
    return Report("Odd numbers", "", chapters=(Chapter("odd", "Odd", "", panels=panels),))


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser, or a skip with the reason."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")
    if CHROMIUM is None:
        pytest.skip("needs a chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def report():
    return sample()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a report; at the end nothing may have failed and nothing but the file may have been asked for."""
    contexts, complaints, asked = [], [], []

    def open_report(report, viewport=DESKTOP, **options):
        path = write_page(report, tmp_path / "report.html")
        contexts.append(browser.new_context(viewport=viewport, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("data:", tmp_path.as_uri()))] == []
