"""How things look: one colour and marker per method in every figure, and the settings all figures share.

Colours are those of Okabe and Ito, joined by three for the baselines; they stay apart for colour-blind readers, markers
stay apart in grey print.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MethodStyle:
    """What stands for a method in figures and tables."""

    label: str
    color: str
    marker: str


METHODS: dict[str, MethodStyle] = {
    "c-admm": MethodStyle("C-ADMM", "#000000", "o"),
    "rb-admm": MethodStyle("RB-ADMM", "#E69F00", "s"),
    "ac-admm": MethodStyle("AC-ADMM", "#009E73", "^"),
    "uq-admm": MethodStyle("UQ-ADMM", "#0072B2", "D"),
    "auq-admm": MethodStyle("AUQ-ADMM", "#D55E00", "v"),
    "auq-lr": MethodStyle("AUQ-LR", "#CC79A7", "P"),
    "lbfgs": MethodStyle("L-BFGS", "#56B4E9", "<"),
    "lbfgs-w": MethodStyle("L-BFGS+W", "#994F00", ">"),
    "owl-qn": MethodStyle("OWL-QN", "#DDCC77", "h"),
    "fista": MethodStyle("FISTA", "#4B0092", "p"),
}


def method_style(method: str) -> MethodStyle:
    """The style of a method by name; one that is not known, such as a user's own, is grey with a cross."""
    return METHODS.get(method, MethodStyle(method, "#777777", "X"))


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
