"""The curves of a report as JSON: thinned out, packed, and safe inside a script element.

A column is [start, step, count] where it is an arithmetic progression, as iterations and bytes often are, and otherwise
little-endian float32 in base64: half the size of digits, and parsed at once by the browser. In it NaN is "not measured"
(None; a line goes on across it) and infinity is "not finite" (a line breaks).

Colours are for light and for dark ground: the hue of a method is that of every figure, its lightness fits the ground
by contrast. Lines need a contrast of 3 and text one of 4.5 (WCAG 2, AA); some of the printed colours have 2.2
on white.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from auqadmm.report.content import Chapter, Curve, Panel, Report
from auqadmm.report.style import METHODS, MethodStyle

POINTS = 500  # more than a panel has pixels for
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)  # larger values become infinity

Column = str | list[float] | None


class Palette:
    """The looks of all series of a report, assigned in order of appearance."""

    def __init__(self) -> None:
        self.colors: dict[tuple[str, str], int] = {}
        self._unknown: dict[str, int] = {}

    def series(self, curves: Sequence[Curve]) -> dict[tuple[str, str, bool], dict[str, Any]]:
        """One look per method, label and control among the curves of a chapter."""
        looks: dict[tuple[str, str, bool], dict[str, Any]] = {}
        count: dict[tuple[str, bool], int] = {}
        for curve in curves:
            key = series_key(curve)
            if key not in looks:
                variant = count.setdefault((curve.method, curve.control), 0)
                count[curve.method, curve.control] += 1
                looks[key] = {"label": curve.label, "control": curve.control} | self._look(curve.method, variant)
        return looks

    def _look(self, method: str, variant: int) -> dict[str, Any]:
        if method in METHODS:
            style = METHODS[method]
        else:
            style = other_style(method, self._unknown.setdefault(method, len(self._unknown)))
        color = self.colors.setdefault(on_grounds(style.color, variant), len(self.colors))
        marker = MARKERS[(MARKERS.index(style.marker) + variant) % len(MARKERS)] if variant else style.marker
        return {"color": color, "marker": marker}


def series_key(curve: Curve) -> tuple[str, str, bool]:
    """What makes two curves the same series of a chapter."""
    return curve.method, curve.label, curve.control


def report_data(report: Report) -> tuple[list[dict[str, Any]], Palette]:
    """Chapters as the scripts read them, and the colours they point to."""
    palette = Palette()
    return [_chapter(chapter, palette) for chapter in report.chapters], palette


def script_json(value: object) -> str:
    """JSON that cannot end its script element, nor open a comment there."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _chapter(chapter: Chapter, palette: Palette) -> dict[str, Any]:
    looks = palette.series([curve for panel in chapter.panels for curve in panel.curves])
    place = {key: index for index, key in enumerate(looks)}
    return {"series": list(looks.values()), "panels": [_panel(panel, place) for panel in chapter.panels]}


def _panel(panel: Panel, place: Mapping[tuple[str, str, bool], int]) -> dict[str, Any]:
    if not panel.x_axes or not panel.y_axes:
        raise ValueError(f"Panel {panel.title!r} needs at least one axis in x_axes and in y_axes.")
    curves = []
    for curve in panel.curves:
        x, y = _columns(panel, curve)
        kept = thin(x, y)
        curves.append(
            {
                "series": place[series_key(curve)],
                "x": [pack(column, kept) for column in x],
                "y": [pack(column, kept) for column in y],
            }
        )
    return {
        "title": panel.title,
        "x": [_axis(key, words, panel.log_x, None) for key, words in panel.x_axes.items()],
        "y": [_axis(key, words, panel.log_y, panel.floors.get(key)) for key, words in panel.y_axes.items()],
        "curves": curves,
    }


def _axis(key: str, words: str, logarithmic: Sequence[str], floor: float | None) -> dict[str, Any]:
    if floor is not None and not 0 < floor < LARGEST_FLOAT32:
        raise ValueError(f"The floor of axis {key!r} is {floor}; it must be positive and finite.")
    return {"key": key, "words": words, "log": key in logarithmic, "floor": floor}


def _columns(panel: Panel, curve: Curve) -> tuple[list[np.ndarray | None], list[np.ndarray | None]]:
    """The columns of a curve in the order of the panel's axes; None where the curve does not have one."""
    x = [_numbers(curve.x[key]) if key in curve.x else None for key in panel.x_axes]
    y = [_numbers(curve.y[key]) if key in curve.y else None for key in panel.y_axes]
    lengths = {column.size for column in [*x, *y] if column is not None}
    if len(lengths) > 1:
        raise ValueError(
            f"Curve {curve.label!r} of panel {panel.title!r} has columns of {sorted(lengths)} values; "
            "make all columns equally long, with None where something was not measured."
        )
    return x, y


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """None becomes NaN; NaN, infinities and float32 overflows become infinity."""
    numbers = np.array([np.nan if value is None else float(value) for value in values], dtype=float)
    missing = np.array([value is None for value in values], dtype=bool)
    numbers[~missing & ~(np.abs(numbers) <= LARGEST_FLOAT32)] = np.inf
    return numbers


def thin(x: Sequence[np.ndarray | None], y: Sequence[np.ndarray | None], points: int = POINTS) -> np.ndarray:
    """Which points of a curve to keep: all, if there are few; else both ends and the extremes of every column of `y`
    in each of many short intervals, equal and geometric ones, for axes of both kinds."""
    columns = [column for column in y if column is not None]
    count = next((column.size for column in [*x, *y] if column is not None), 0)
    if count <= points or not columns:
        return np.arange(count)
    stretches = max(points // (4 * len(columns)), 16)
    edges = np.concatenate([np.linspace(0, count, stretches + 1), np.geomspace(1, count, stretches + 1), [0]])
    edges = np.unique(edges.astype(int))
    kept = {0, count - 1}
    for column in columns:
        finite = np.isfinite(column)
        low, high = np.where(finite, column, np.inf), np.where(finite, column, -np.inf)
        broken = np.isinf(column)
        kept.update(np.flatnonzero(finite)[[0, -1]].tolist() if finite.any() else ())
        for start, stop in pairwise(edges.tolist()):
            if finite[start:stop].any():
                kept.update((start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())))
            if broken[start:stop].any():
                kept.add(start + int(broken[start:stop].argmax()))
    return np.array(sorted(kept), dtype=int)


def pack(column: np.ndarray | None, kept: np.ndarray) -> Column:
    """A column as the scripts read it."""
    if column is None:
        return None
    values = column[kept]
    if values.size >= 3 and np.isfinite(values).all():
        start, step = float(values[0]), float(values[1] - values[0])
        if np.array_equal(values, start + step * np.arange(values.size)):
            return [start, step, values.size]
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


LIGHT, DARK = "#ffffff", "#191c20"  # the grounds of charts, as in page.css
INK_LIGHT, INK_DARK = "#000000", "#f1f3f5"
CONTRAST = 3.1  # of lines on light ground, a little above the required 3
CONTRAST_DARK = 4.6  # lines on dark ground look thinner
STEPS = (0.0, 0.38, 0.6, 0.76)

# For methods without a style, in order of appearance.
OTHERS = (
    ("#667085", "X"),
    ("#7048b6", "*"),
    ("#8a5a3c", "p"),
    ("#6b7a1e", "h"),
    ("#0e7f8c", "<"),
    ("#a8325a", ">"),
)
MARKERS = tuple(dict.fromkeys([style.marker for style in METHODS.values()] + [marker for _, marker in OTHERS]))


def luminance(color: str) -> float:
    """Relative luminance of "#rrggbb", as WCAG defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mix(color: str, other: str, share: float) -> str:
    """`color` with `share` of `other` in it."""
    pairs = [(int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def on_grounds(color: str, variant: int = 0) -> tuple[str, str]:
    """A colour for a light and for a dark ground; variants of one method move away from the ground, in order."""
    share = STEPS[min(variant, len(STEPS) - 1)]
    if luminance(color) < 0.01:  # black: the ink colour of each ground
        return mix(INK_LIGHT, "#8c8c8c", share), mix(INK_DARK, "#85898f", share)
    light, dark = mix(color, INK_LIGHT, share), mix(color, INK_DARK, share)
    return _until(light, INK_LIGHT, LIGHT, CONTRAST), _until(dark, INK_DARK, DARK, CONTRAST_DARK)


def other_style(method: str, index: int) -> MethodStyle:
    """The style of the `index`-th unknown method."""
    color, marker = OTHERS[index % len(OTHERS)]
    return MethodStyle(method, color, marker)


def _until(color: str, ink: str, ground: str, ratio: float) -> str:
    """The least change of colour that reaches the contrast."""
    shares = (step / 20 for step in range(21))
    return next(c for c in (mix(color, ink, share) for share in shares) if contrast(c, ground) >= ratio)
