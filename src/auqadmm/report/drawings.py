"""Drawings that need no script: intervals in a table, and what was predicted against what was seen.

A forest is a table; its bars are drawn in percents of their cell, so that they fit a phone as well as paper. Colours
and widths are in the style sheet: a page allows no styles of elements.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeGuard

import numpy as np

from auqadmm.report.content import Agreement, Forest, Interval

MIDDLE = 11  # of a row, in pixels
MARGIN = 4.0  # percent at both ends of a bar's cell
PLOT_SIZE = 352, 300  # of a plot
EDGES = {"left": 58, "right": 14, "top": 10, "bottom": 40}
WIDE_RATIO = 1e6  # of the ends of a logarithmic axis: beyond, ticks are powers of ten
RADIUS = (3.0, 6.0)


def forest_html(forest: Forest) -> str:
    """A table with a bar in every row, an axis below."""
    scale = Scale.of(forest)
    head = "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in forest.header)
    rows = "".join(_row(row, forest.header, scale) for row in forest.rows)
    ticks = "".join(
        f'<svg x="{scale.at(t):.2f}%" overflow="visible"><path class="tick-mark" d="M0 0V4"/>'
        f'<text y="16" text-anchor="middle">{escape(number(scale.shown(t)))}</text></svg>'
        for t in scale.ticks()
    )
    return f"""<figure class="forest">
<figcaption>{escape(forest.title)}</figcaption>
<table><thead><tr><th scope="col"><span class="hidden">name</span></th>
<th scope="col" class="bars">{escape(forest.axis)}</th>{head}</tr></thead>
<tbody>
{rows}<tr class="axis" aria-hidden="true"><td></td><td class="bars"><svg width="100%" height="20">
<path class="baseline" d="M0 0H4000"/>{ticks}</svg></td>{"<td></td>" * len(forest.header)}</tr>
</tbody></table>
</figure>
"""


def _row(row: Interval, header: tuple[str, ...], scale: Scale) -> str:
    kind = "common" if row.common else "single"
    cells = "".join(
        f'<td class="number" data-name="{escape(name)}">{escape(text)}</td>'
        for name, text in zip(header, row.cells, strict=True)
    )
    return (
        f'<tr class="{kind}"><th scope="row">{escape(row.label)}</th>'
        f'<td class="bars"><svg width="100%" height="22" aria-hidden="true">{_bar(row, scale)}</svg></td>{cells}</tr>\n'
    )


def _bar(row: Interval, scale: Scale) -> str:
    zero = scale.at(scale.reference)
    parts = [f'<line class="none" x1="{zero:.2f}%" x2="{zero:.2f}%" y1="0" y2="22"/>']
    if row.low is not None and row.high is not None:
        ends = [scale.inside(x) for x in (row.low, row.high)]
        a, b = (scale.at(x) for x, _ in ends)
        parts.append(f'<line class="interval" x1="{a:.2f}%" x2="{b:.2f}%" y1="{MIDDLE}" y2="{MIDDLE}"/>')
        for place, (_, cut), side in zip((a, b), ends, (-1, 1), strict=True):
            if cut:  # it goes on beyond the axis
                arrow = f"M0 {MIDDLE - 4}L{5 * side} {MIDDLE}L0 {MIDDLE + 4}Z"
                parts.append(f'<svg x="{place:.2f}%" overflow="visible"><path class="mark" d="{arrow}"/></svg>')
    if row.value is not None and not scale.inside(row.value)[1]:
        shape = f"M-6 {MIDDLE}L0 {MIDDLE - 6}L6 {MIDDLE}L0 {MIDDLE + 6}Z" if row.common else f"M-4 {MIDDLE - 4}h8v8h-8Z"
        place = scale.at(scale.inside(row.value)[0])
        parts.append(f'<svg x="{place:.2f}%" overflow="visible"><path class="mark" d="{shape}"/></svg>')
    return "".join(parts)


class Scale:
    """Values of a forest as percents of a cell; logarithms where the axis is logarithmic."""

    def __init__(self, low: float, high: float, reference: float, log: bool) -> None:
        self.low, self.high, self.reference, self.log = low, high, reference, log

    @classmethod
    def of(cls, forest: Forest) -> Scale:
        """Wide enough for all estimates and most intervals; what a tiny site does not know is cut."""
        turn: Callable[[float], float] = math.log if forest.log else float
        known = [(r.value, r.low, r.high) for r in forest.rows]
        rows = [tuple(map(turn, r)) for r in known if _drawable(r, forest.log)]
        zero = turn(forest.reference)
        if not rows:
            return cls(zero - 1, zero + 1, zero, forest.log)
        usual = median(high - low for _, low, high in rows)
        kept = [(v, low, high) for v, low, high in rows if high - low <= 4 * usual] or rows
        low, high = min(zero, *(r[1] for r in kept)), max(zero, *(r[2] for r in kept))
        width = (high - low) or 1.0
        return cls(low - 0.02 * width, high + 0.02 * width, zero, forest.log)

    def inside(self, x: float) -> tuple[float, bool]:
        """On the axis, and whether it had to be cut."""
        if self.log and not x > 0:
            return self.low, True
        t = math.log(x) if self.log else x
        return min(max(t, self.low), self.high), not self.low <= t <= self.high

    def at(self, t: float) -> float:
        return MARGIN + (100 - 2 * MARGIN) * (t - self.low) / (self.high - self.low)

    def shown(self, t: float) -> float:
        return math.exp(t) if self.log else t

    def ticks(self) -> list[float]:
        """About three round values on the axis."""
        if not self.log:
            return round_values(self.low, self.high, 3)
        low, high = math.exp(self.low), math.exp(self.high)
        if high / low < 4:
            return [math.log(x) for x in round_values(low, high, 3) if x > 0]
        if high / low > WIDE_RATIO:
            decades = round_values(self.low / math.log(10), self.high / math.log(10), 3)
            return [round(d) * math.log(10) for d in decades]
        steps = [m * 10.0**e for e in range(-12, 13) for m in (1, 2, 5)]
        some = [x for x in steps if low <= x <= high]
        every = max(1, -(-len(some) // 4))
        one = next((k for k, x in enumerate(some) if x == 1), 0)  # keeps the value of no effect
        return [math.log(x) for k, x in enumerate(some) if (k - one) % every == 0]


def _drawable(values: tuple[float | None, ...], log: bool) -> TypeGuard[tuple[float, ...]]:
    return all(x is not None and math.isfinite(x) and (x > 0 or not log) for x in values)


# ---------------------------------------------------------------------- predicted and seen
def agreement_html(plot: Agreement) -> str:
    """Points near the diagonal are groups of rows whose predictions came true on average."""
    points = np.array([p[:2] for series in plot.series.values() for p in series], dtype=float).reshape(-1, 2)
    if not len(points) or not np.isfinite(points).all():
        return ""
    low, high = (0.0, 1.0) if plot.share else (float(points.min()), float(points.max()))
    span = (high - low) or abs(high) or 1.0
    low, high = (low, high) if plot.share else (low - 0.05 * span, high + 0.05 * span)
    width, height = PLOT_SIZE
    left, right, top, bottom = EDGES["left"], width - EDGES["right"], EDGES["top"], height - EDGES["bottom"]

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    grid = ""
    for t in round_values(low, high, 6):
        text = escape(number(t))
        grid += f'<path class="grid" d="M{x(t):.1f} {top}V{bottom}M{left} {y(t):.1f}H{right}"/>'
        grid += f'<text x="{x(t):.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
        grid += f'<text x="{left - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{text}</text>'
    drawn, legend = "", ""
    for k, (label, series) in enumerate(plot.series.items()):
        kind = f"series-{k}"
        most = max(weight for _, _, weight in series)
        marks = "".join(
            f'<circle class="{kind}" cx="{x(p):.1f}" cy="{y(o):.1f}" '
            f'r="{RADIUS[0] + (RADIUS[1] - RADIUS[0]) * math.sqrt(weight / most):.1f}"/>'
            for p, o, weight in series
        )
        path = "M" + "L".join(f"{x(p):.1f} {y(o):.1f}" for p, o, _ in series)
        drawn += f'<path class="trace {kind}" d="{path}"/>{marks}'
        legend += (
            f'<li><svg width="16" height="12" aria-hidden="true"><circle class="{kind}" cx="8" cy="6" r="5"/></svg> '
            f"{escape(label)}</li>"
        )
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td>{number(p)}</td><td>{number(o)}</td><td>{number(w)}</td></tr>'
        for label, series in plot.series.items()
        for p, o, w in series
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("rows", "predicted", "observed", "weight"))
    return f"""<figure class="agreement">
<figcaption>{escape(plot.title)}</figcaption>
<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{escape(plot.title)}">
{grid}<path class="diagonal" d="M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"/>
{drawn}
<text class="axis-name" x="{(left + right) / 2}" y="{height - 5}" text-anchor="middle">predicted</text>
<text class="axis-name" transform="translate(11 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle">observed</text>
</svg>
<ul class="key">{legend}</ul>
<details><summary>In numbers</summary>
<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>
</figure>
"""


# ---------------------------------------------------------------------- numbers
def round_values(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two values."""
    width = high - low
    if not width > 0 or not math.isfinite(width):
        return [low]
    rough = width / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def number(x: float) -> str:
    """Short: 0.25, 1.5e-7."""
    return "0" if abs(x) < 1e-300 else f"{x:.4g}".replace("-", "−", 1) if x < 0 else f"{x:.4g}"


def escape(text: str) -> str:
    """Safe in an element and in a quoted attribute; characters that UTF-8 cannot encode become question marks."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)


def drawings_html(drawings: Sequence[Forest | Agreement]) -> str:
    parts = [forest_html(d) if isinstance(d, Forest) else agreement_html(d) for d in drawings]
    return f'<div class="drawings">\n{"".join(parts)}</div>\n' if any(parts) else ""
