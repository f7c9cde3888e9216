"""How things look: one colour and marker per method in every figure, and the settings all figures share.

Colours are those of Okabe and Ito, plus three for the baselines; distinguishable for colour-blind readers, and markers
in grey print.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MethodStyle:
    """The style of a method in figures and tables."""

    label: str
    color: str
    marker: str
    short: str = ""
    dash: Any = "-"
    base: str = ""  # the method that this one varies


METHODS: dict[str, MethodStyle] = {
    "c-admm": MethodStyle("C-ADMM", "#000000", "o", "C"),
    "rb-admm": MethodStyle("RB-ADMM", "#E69F00", "s", "RB"),
    "ac-admm": MethodStyle("AC-ADMM", "#009E73", "^", "AC"),
    "uq-admm": MethodStyle("UQ-ADMM", "#0072B2", "D", "UQ"),
    "auq-admm": MethodStyle("AUQ-ADMM", "#D55E00", "v", "AUQ"),
    "auq-lr": MethodStyle("AUQ-LR", "#CC79A7", "P", "LR"),
    "newton": MethodStyle("Newton", "#882255", "H", "N"),
    "lbfgs": MethodStyle("L-BFGS", "#56B4E9", "<"),
    "lbfgs-w": MethodStyle("L-BFGS+W", "#994F00", ">"),
    "owl-qn": MethodStyle("OWL-QN", "#DDCC77", "h"),
    "fista": MethodStyle("FISTA", "#4B0092", "p"),
}

# Variants keep the colour of the method they vary; controls (S11) are broken lines with open markers.
VARIANTS: dict[str, MethodStyle] = {
    "rb-admm-paper": MethodStyle("RB-ADMM, dual residual as printed", "#B07A00", "p", "RB′", base="rb-admm"),
    "c-admm-a": MethodStyle("control: C-ADMM, ρ = a", "#666666", "o", "C(a)", (0, (5, 2)), "c-admm"),
    "auq-permuted": MethodStyle("control: AUQ, weights permuted", "#D55E00", "<", "perm", (0, (5, 2)), "auq-admm"),
    "auq-mean": MethodStyle("control: AUQ, weights averaged", "#D55E00", ">", "mean", (0, (1, 1.5)), "auq-admm"),
    "auq-rank-1": MethodStyle("AUQ-ADMM, rank 1", "#56B4E9", "o", "1", base="auq-admm"),
    "auq-rank-5": MethodStyle("AUQ-ADMM, rank 5", "#D55E00", "v", "5", base="auq-admm"),
    "auq-rank-10": MethodStyle("AUQ-ADMM, rank 10", "#009E73", "s", "10", base="auq-admm"),
    "auq-rank-100": MethodStyle("AUQ-ADMM, rank 100", "#000000", "D", "100", base="auq-admm"),
}


def method_style(method: str) -> MethodStyle:
    """The style of a method by name; an unknown one, such as a user-defined one, is grey with a cross."""
    return METHODS.get(method) or VARIANTS.get(method) or MethodStyle(method, "#777777", "X", method)


# Any: matplotlib types the keys one by one from 3.11 on, and not at all before.
RC: Any = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 10.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 6,
    "image.cmap": "viridis",
}


# labels of the x axes
COSTS = {
    "iteration": "iterations",
    "rounds": "rounds",
    "bytes": "bytes sent and received per worker",
    "seconds": "seconds of computing",
}
