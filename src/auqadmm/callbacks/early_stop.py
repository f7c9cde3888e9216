"""Stop before the tolerances are met."""

from __future__ import annotations

import math
from collections.abc import Callable

from auqadmm.checks import is_number, whole_number
from auqadmm.core.solve import Iteration
from auqadmm.errors import InputError, InputTypeError


class EarlyStop:
    """Ends a run, with status "interrupted", as soon as one of its conditions is met; `reason` then says which.

    Parameters
    ----------
    objective
        Stop at this objective or below.
    patience
        Stop when the objective has not improved for so many iterations.
    improvement
        What counts as an improvement: a decrease of more than this share of |objective|.
    when
        Stop when this function of an `Iteration` is true.

    Raises
    ------
    ValueError
        No condition is given, or one that cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> stop = aq.callbacks.EarlyStop(objective=4.0)
    >>> result = aq.solve(problem, "c-admm", callbacks=[stop])
    >>> result.status == "interrupted", result.objective < 4.0
    (True, True)
    """

    def __init__(
        self,
        objective: float | None = None,
        *,
        patience: int | None = None,
        improvement: float = 0.0,
        when: Callable[[Iteration], object] | None = None,
    ) -> None:
        if objective is None and patience is None and when is None:
            raise InputError("EarlyStop needs a condition: objective, patience or when.")
        if objective is not None and not (is_number(objective) and not math.isnan(objective)):
            raise InputError(f"objective must be a number, got {objective!r}.")
        if not (is_number(improvement) and 0 <= improvement < math.inf):
            raise InputError(f"improvement must be a finite number ≥ 0, got {improvement!r}.")
        if when is not None and not callable(when):
            raise InputTypeError(f"when must be a function of an Iteration, got {when!r}.")
        self.objective = objective
        self.patience = None if patience is None else whole_number("patience", patience, least=1)
        self.improvement = improvement
        self.when = when
        self._forget()

    def _forget(self) -> None:
        self.reason = ""
        self._best, self._since, self._last = math.inf, 0, 0

    def __call__(self, event: Iteration) -> bool:
        k = event.row.iteration
        if k <= self._last:  # a new run
            self._forget()
        if self._last == 0:
            self._since = k
        self._last = k
        self.reason = self._why(event)
        return bool(self.reason)

    def _why(self, event: Iteration) -> str:
        k, value = event.row.iteration, event.row.objective
        if value is not None and self.objective is not None and value <= self.objective:
            return f"objective {value:.6g} ≤ {self.objective:.6g} after {k} iterations"
        # the first value improves on infinity, whatever the share
        if value is not None and value < self._best - (self.improvement * abs(value) if self._best < math.inf else 0):
            self._best, self._since = value, k
        if self.patience is not None and k - self._since >= self.patience:
            return f"no objective below {self._best:.6g} in the last {k - self._since} iterations"
        if self.when is not None and self.when(event):
            return f"{getattr(self.when, '__name__', 'when')} was true after {k} iterations"
        return ""
