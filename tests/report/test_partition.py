"""The picture of a partition: every number where it belongs, nothing outside the figure, any number of workers."""

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from auqadmm.paper import images
from auqadmm.paper.data import PartitionTable, partition_table
from auqadmm.paper.images import SHADES, rows_per_class
from auqadmm.report.figures import save


def made(workers: int, classes: int = 10, most: int = 4000) -> PartitionTable:
    counts = np.random.default_rng(workers).integers(0, most, (workers, classes)) * (np.arange(classes) % 3 > 0)
    names = tuple(map(str, range(workers))), tuple(map(str, range(classes)))
    return PartitionTable(*names, tuple(map(tuple, counts.tolist())))


def drawn(figure, path):
    save(figure, path, dpi=60)
    return matplotlib.image.imread(path)


@pytest.mark.parametrize("workers", [1, 2, 10, 50])
def test_every_cell_shows_its_number(tmp_path, workers):
    table = made(workers)
    figure = rows_per_class(table)
    cells, bars = figure.axes
    shown = {(int(y), int(x)): text.get_text() for text in cells.texts for x, y in [text.get_position()]}
    counts = np.array(table.counts)
    assert shown == {(j, c): f"{counts[j, c]:,}" for j, c in np.argwhere(counts).tolist()}
    assert [bar.get_width() for bar in bars.patches] == list(table.totals)
    assert [text.get_text() for text in bars.texts] == [f"{total:,}" for total in table.totals]
    assert [label.get_text() for label in cells.get_yticklabels()] == list(table.workers)
    assert drawn(figure, tmp_path / "p.png").std() > 0.01


@pytest.mark.parametrize("workers", [1, 2, 50])
def test_numbers_do_not_touch_and_nothing_leaves_the_figure(tmp_path, workers):
    figure = rows_per_class(made(workers, most=100_000))
    drawn(figure, tmp_path / "p.png")
    for axis in figure.axes:
        tight = axis.get_tightbbox()
        assert figure.bbox.x0 <= tight.x0 < tight.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= tight.y0 < tight.y1 <= figure.bbox.y1
        boxes = [text.get_window_extent() for text in axis.texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_names_are_cut_and_stand_upright_where_they_are_long(tmp_path):
    table = partition_table([([[0]], ["automobile"]), ([[0]], ["cat"])], workers=["A very long name of a place", "B"])
    figure = rows_per_class(table)
    assert figure.axes[0].get_yticklabels()[0].get_text() == "A very long name …"
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {90.0}
    drawn(figure, tmp_path / "p.png")


@pytest.mark.parametrize(("workers", "classes"), [(300, 10), (10, 100), (2000, 3)])
def test_large_tables_have_colours_without_numbers(tmp_path, workers, classes):
    figure = rows_per_class(made(workers, classes))
    assert len(figure.axes[0].texts) == 0
    assert max(figure.get_size_inches()) < 20
    drawn(figure, tmp_path / "p.png")


def test_empty_workers_and_empty_tables(tmp_path):
    drawn(rows_per_class(PartitionTable(("0", "1"), ("a",), ((0,), (0,)))), tmp_path / "p.png")
    drawn(rows_per_class(PartitionTable(("0", "1"), ("a", "b"), ((3, 0), (0, 0)))), tmp_path / "q.png")
    for table in (PartitionTable((), ("a",), ()), PartitionTable(("0",), (), ((),))):
        with pytest.raises(ValueError, match="nothing to draw"):
            rows_per_class(table)


def test_more_rows_are_darker_and_numbers_stand_out():
    def brightness(color):
        return float(np.dot((0.299, 0.587, 0.114), to_rgb(color)))

    shades = [brightness(SHADES(s)) for s in np.linspace(0, 1, 50)]
    assert all(a > b for a, b in pairwise(shades))
    for s in np.linspace(0, 1, 50):
        assert abs(brightness(SHADES(s)) - brightness(images._ink(s))) > 0.35


def test_global_settings_are_left_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    drawn(rows_per_class(made(3)), tmp_path / "p.png")
    assert dict(matplotlib.rcParams) == before
