"""Colours on light and on dark: the hue of a method is that of every figure, its lightness what the ground asks for.

A line needs a contrast of 3 to be seen and text one of 4.5 (WCAG 2, AA); some of the printed colours have 2.2 on white.
"""

from __future__ import annotations

from auqadmm.report.style import METHODS, MethodStyle

LIGHT, DARK = "#ffffff", "#191c20"  # the grounds of charts, as in page.css
INK_LIGHT, INK_DARK = "#000000", "#f1f3f5"
CONTRAST = 3.1
CONTRAST_DARK = 4.6  # lines on dark look thinner than they are
STEPS = (0.0, 0.38, 0.6, 0.76)

# For methods nobody styled, in order of appearance.
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
    if luminance(color) < 0.01:  # black: the ink of each ground, whose variants move towards it
        return mix(INK_LIGHT, "#8c8c8c", share), mix(INK_DARK, "#85898f", share)
    light, dark = mix(color, INK_LIGHT, share), mix(color, INK_DARK, share)
    return _until(light, INK_LIGHT, LIGHT, CONTRAST), _until(dark, INK_DARK, DARK, CONTRAST_DARK)


def other_style(method: str, index: int) -> MethodStyle:
    """How the method that is number `index` among the unknown ones looks."""
    color, marker = OTHERS[index % len(OTHERS)]
    return MethodStyle(method, color, marker)


def _until(color: str, ink: str, ground: str, ratio: float) -> str:
    """As little ink as gives the contrast."""
    shares = (step / 20 for step in range(21))
    return next(c for c in (mix(color, ink, share) for share in shares) if contrast(c, ground) >= ratio)
