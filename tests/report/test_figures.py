"""Figures: drawn without warnings (pytest makes them errors), complete, and without lasting effects."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from auqadmm.report import figures
from auqadmm.report.style import METHODS, method_style


def drawn(figure, path):
    figures.save(figure, path, dpi=60)
    return matplotlib.image.imread(path)


def test_convergence_draws_every_run_in_its_colour(run_of, tmp_path):
    runs = [run_of(model, method) for model in ("elastic net", "multinomial") for method in METHODS]
    figure = figures.convergence(runs)
    assert len(figure.axes) == 4
    for axis in figure.axes:
        colors = [to_hex(line.get_color()) for line in axis.get_lines() if line.get_marker() != "None"]
        assert colors == [to_hex(style.color) for style in METHODS.values()]
        assert axis.get_xscale() == axis.get_yscale() == "log"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [style.label for style in METHODS.values()]
    assert drawn(figure, tmp_path / "c.png").std() > 0.01


def test_every_label_of_convergence_lies_inside_the_figure(run_of, tmp_path):
    figure = figures.convergence([run_of(method=method) for method in METHODS])
    drawn(figure, tmp_path / "c.png")
    box = figure.bbox
    for axis in figure.axes:
        tight = axis.get_tightbbox()
        assert box.x0 <= tight.x0
        assert tight.x1 <= box.x1
        assert box.y0 <= tight.y0
        assert tight.y1 <= box.y1


@pytest.mark.parametrize(
    "case",
    [
        {"count": 1},
        {"count": 0},
        {"factor": 1e-9},  # reaches the rounding of the optimum, and a gap below zero is clipped
        {"factor": 0.999},  # hardly moves: less than one power of ten
        {"evaluated": False},
    ],
)
def test_convergence_of_unusual_runs(run_of, tmp_path, case):
    drawn(figures.convergence([run_of(**case)]), tmp_path / "c.png")
    drawn(figures.convergence([run_of(**case)], target=None), tmp_path / "d.png")


def test_convergence_of_a_method_nobody_styled(run_of):
    figure = figures.convergence([run_of(method="mine")])
    assert figure.legends[0].get_texts()[0].get_text() == "mine"
    assert to_hex(figure.axes[0].get_lines()[0].get_color()) == method_style("mine").color


def test_convergence_needs_a_run():
    with pytest.raises(ValueError, match="at least one run"):
        figures.convergence([])


@pytest.mark.parametrize(("workers", "columns", "panels"), [(10, 1, 10), (3, 1, 3), (7, 1, 10), (4, 6, 24)])
def test_weight_images_show_each_weight_once(tmp_path, workers, columns, panels):
    W = torch.rand(workers, 12, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    figure = figures.weight_images(W, (3, 4), "weights")
    images = [axis.get_images()[0].get_array() for axis in figure.axes if axis.get_images()]
    assert len(figure.axes) == panels + 1  # the colour bar
    assert len(images) == workers * columns
    expected = W.permute(0, 2, 1).reshape(-1, 3, 4).numpy()
    assert np.array_equal(np.stack(images), expected)
    assert drawn(figure, tmp_path / "w.png").std() > 0.01


def test_weight_images_of_constant_weights(tmp_path):
    drawn(figures.weight_images(np.ones((2, 4, 1)), (2, 2), "no information"), tmp_path / "w.png")


@pytest.mark.parametrize("shape", [(2, 5, 1), (2, 4), (0, 4, 1)])
def test_weight_images_refuse_a_wrong_shape(shape):
    with pytest.raises(ValueError, match=r"weights must be \(N, 4, C\)"):
        figures.weight_images(np.ones(shape), (2, 2), "")


def test_global_settings_are_left_alone(run_of, tmp_path):
    before = dict(matplotlib.rcParams)
    drawn(figures.convergence([run_of()]), tmp_path / "c.png")
    drawn(figures.weight_images(np.ones((2, 4, 1)), (2, 2), ""), tmp_path / "w.png")
    assert dict(matplotlib.rcParams) == before
