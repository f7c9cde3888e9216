"""Inference on paper: tables as text, for LaTeX, for a page; a forest plot of one coefficient at every site."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from auqadmm.inference.inference import Inference


WIDTH = 78
PLAIN_BELOW = 1e6  # numbers beyond are shown with a power of ten


def summary(of: Inference) -> str:
    heads, rows = cells(of)
    first = max([len(name) for name in of.names] + [12])
    widths = [max(len(head), *(len(row[k]) for row in rows)) + 2 for k, head in enumerate(heads)]
    width = max(first + sum(widths), WIDTH)
    lines = [_title(of).center(width).rstrip(), "=" * width, *_facts(of, width), "=" * width]
    lines.append(" " * first + "".join(h.rjust(w) for h, w in zip(heads, widths, strict=True)))
    lines.append("-" * width)
    for name, row in zip(of.names, rows, strict=True):
        lines.append(name.ljust(first) + "".join(x.rjust(w) for x, w in zip(row, widths, strict=True)))
    return "\n".join([*lines, "=" * width, *notes(of)])


def latex(of: Inference) -> str:
    heads, rows = cells(of)
    heads = [head.replace("|", "$|$").replace("[", "{[}") for head in heads]
    lines = [f"\\begin{{tabular}}{{l{'r' * len(heads)}}}", "\\toprule", " & ".join(["", *heads]) + r" \\", "\\midrule"]
    for name, row in zip(of.names, rows, strict=True):
        lines.append(" & ".join([_tex(name), *(f"${x}$" if x.startswith("-") else x for x in row)]) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in notes(of))])


def html(of: Inference) -> str:
    heads, rows = cells(of)
    head = "".join(f"<th>{escape(h)}</th>" for h in ["", *heads])
    body = "\n".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(x)}</td>' for x in row)}</tr>"
        for name, row in zip(of.names, rows, strict=True)
    )
    foot = "".join(f'\n<tr><td colspan="{len(heads) + 1}">{escape(note)}</td></tr>' for note in notes(of))
    foot = f"\n<tfoot>{foot}\n</tfoot>" if foot else ""
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>{foot}\n</table>"


def cells(of: Inference) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table, as text."""
    ends = f"[{0.5 - of.level / 2:.4g}", f"{0.5 + of.level / 2:.4g}]"
    sign = "t" if of.use_t else "z"
    told = {"se": "std err", "p": f"P>|{sign}|", "low": ends[0], "high": ends[1], "one_step": "one step"}
    heads = [told.get(name, name) for name in of.columns]
    formats = {"p": "{:.3f}", sign: "{:.3f}"}
    columns = [[_cell(x, formats.get(name, "{:.4f}")) for x in values] for name, values in of.columns.items()]
    for k, (name, values) in enumerate(of.columns.items()):
        if name not in (*formats, "p") and np.abs(values[np.isfinite(values)]).max(initial=0) < 0.01:
            columns[k] = [f"{x:.3e}" for x in values]
    return heads, [list(row) for row in zip(*columns, strict=True)]


def _cell(x: float, form: str) -> str:
    return form.format(x) if abs(x) < PLAIN_BELOW else f"{x:.4e}"


def notes(of: Inference) -> list[str]:
    """What belongs below the table."""
    out = []
    if of.exponentiated:
        out.append(f"ratio: {of.exponentiated}, exp(coef).")
    if of.k is not None:
        how = "given" if of.k_se is None else f"standard error {of.k_se:.4g}"
        out.append(f"k = {of.k:.6g} ({how}); the variance is μ + μ²/k.")
    if of.label:
        out.append(of.label)
    if of.cov == "cluster":
        out.append(
            f"Standard errors are robust to dependence within {len(of.site_names)} sites; few sites make them small."
        )
    if of.heterogeneity is not None:
        h = of.heterogeneity
        out.append(f"Differences between sites: Q = {h.statistic:.2f}, df {h.df:g}, p = {h.p:.3g}, I² = {h.i2:.0%}.")
    return out


def _title(of: Inference) -> str:
    model = f"{of.family} model, link {of.link}" if of.family else "Model without a likelihood"
    sites = len(of.site_names)
    return f"{model}, {sites} site{'s' * (sites != 1)}"


def _facts(of: Inference, width: int) -> list[str]:
    def shown(x: float | None, digits: int = 6) -> str:
        return "–" if x is None else f"{x:.{digits}g}"

    left = [
        ("Rows:", shown(of.nobs, 12)),
        ("Df residuals:", shown(of.df_resid, 12)),
        ("Parameters:", shown(of.df_model)),
        ("Covariance:", of.cov),
        ("Dispersion:", shown(of.dispersion)) if of.events is None else ("Events:", shown(of.events, 12)),
    ]
    right = [
        ("Log-likelihood:", shown(of.llf)),
        ("Deviance:", shown(of.deviance)),
        ("Null deviance:", shown(of.null_deviance)),
        ("AIC, BIC:", f"{shown(of.aic)}, {shown(of.bic)}"),
        ("Deviance explained:", shown(of.pseudo_r2, 4)),
    ]
    half = width // 2 - 2
    out = []
    for (a, x), (b, y) in zip(left, right, strict=True):
        out.append(a + x.rjust(half - len(a)) + "    " + b + y.rjust(width - half - 4 - len(b)))
    return out


def _tex(name: str) -> str:
    for sign in "\\&%$#_{}":
        name = name.replace(sign, "\\" + sign if sign != "\\" else "\\textbackslash ")
    return name


def draw(of: Inference, k: int, ax: Axes | None) -> Axes:
    """Sites from the top, the common estimate last; a site that does not determine the coefficient has no mark."""
    import matplotlib.pyplot as plt

    sites = of.sites.xs(of.names[k], level="column")
    common = of.interval
    show = np.exp if of.exponentiated else np.asarray
    if ax is None:
        _, ax = plt.subplots(figsize=(6.0, 1.2 + 0.32 * (len(sites) + 1)), layout="constrained")
    places = np.arange(len(sites), 0, -1)
    coef, low, high = (show(sites[name].to_numpy()) for name in ("coef", "low", "high"))
    ax.hlines(places, low, high, color="0.35", linewidth=1.2)
    weight = 1 / np.square(sites["se"].to_numpy())
    size = 20 + 80 * weight / np.nanmax(weight) if np.isfinite(weight).any() else 40
    ax.scatter(coef, places, s=size, marker="s", color="0.2", zorder=3)
    middle = float(show(of.coef[k]))
    if common is not None:
        ends = show(common[k])
        ax.fill([ends[0], middle, ends[1], middle], [0, 0.25, 0, -0.25], color="C0", zorder=3)
    ax.axvline(middle, color="C0", linewidth=0.8, linestyle="--")
    ax.axvline(1.0 if of.exponentiated else 0.0, color="0.7", linewidth=0.8)
    ax.set_yticks([*places, 0], [*sites.index, "all sites"])
    ax.set_xlabel(f"{of.exponentiated} of {of.names[k]}" if of.exponentiated else f"coefficient of {of.names[k]}")
    if of.exponentiated:
        ax.set_xscale("log")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax
