"""Tables on paper: as text, for LaTeX, for a page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from auqadmm.inference.inference import Inference

WIDTH = 78
LARGE = 1e6  # numbers beyond are shown with a power of ten


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
    return form.format(x) if abs(x) < LARGE else f"{x:.4e}"


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
        ("Df model:", shown(of.df_model)),
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
