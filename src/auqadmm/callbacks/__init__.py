"""Callbacks after each iteration: show it, log it, stop.

    with aq.callbacks.Progress() as progress:
        aq.solve(problem, callbacks=[progress, aq.callbacks.EarlyStop(patience=20)])

A callback is any function of an `Iteration`; one that returns True stops the run. One that fails ends it: the exception
reaches the caller, and with `checkpoint=` the last iterate is saved first.
"""

from __future__ import annotations

from auqadmm.callbacks.early_stop import EarlyStop
from auqadmm.callbacks.progress import Progress
from auqadmm.callbacks.trackers import MLflow, TensorBoard

__all__ = ["EarlyStop", "MLflow", "Progress", "TensorBoard"]


def __dir__() -> list[str]:
    return sorted(__all__)
