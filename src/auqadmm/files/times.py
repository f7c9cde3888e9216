"""The columns of a survival model in a file: time, event and, where rows are not at risk from the beginning, entry.

Shapes: n rows; y (n, 3).
"""

from __future__ import annotations

import numpy as np

from auqadmm.files.tabular import Roles, refuse_row
from auqadmm.problem.risk_sets import ENTRY, EVENT, TIME

NEEDED = {
    "time": "times are numbers above zero, measured from where a row begins",
    "event": "an event is 1 or true, a censored row 0 or false",
    "entry": "a row enters at a number below its time",
}


def check_times(source: str, y: np.ndarray, roles: Roles) -> np.ndarray:
    """Times, events and entries that a model can have; the first row that has others is named."""
    time, event, entry = y.T
    lack = np.isnan(y)
    known = ~lack
    with np.errstate(invalid="ignore"):
        wrong = {
            "time": known[:, TIME] & ~(np.isfinite(time) & (time > 0)),
            "event": known[:, EVENT] & (event != 0) & (event != 1),
            "entry": known[:, ENTRY] & (~np.isfinite(entry) | (entry >= time)),
        }
    for place, (what, name) in enumerate({"time": roles.time, "event": roles.event, "entry": roles.entry}.items()):
        bad = wrong[what] if roles.gaps else wrong[what] | lack[:, place]
        rows = np.flatnonzero(bad)
        if name is None or not rows.size:
            continue
        row = int(rows[0])
        told = "is missing" if lack[row, place] else f"is {y[row, place]:g}"
        if what == "entry" and known[row, place]:
            told += f" and the time {time[row]:g}"
        raise refuse_row(source, row, name, told, NEEDED[what])
    return y
