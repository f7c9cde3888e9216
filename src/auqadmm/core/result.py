"""What a run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from auqadmm.core.certificate import Certificate
from auqadmm.core.history import History
from auqadmm.core.state import Status, WarmStart
from auqadmm.diagnosis.diagnosis import Diagnosis, diagnose
from auqadmm.diagnosis.evidence import Evidence
from auqadmm.metrics.weights import Weights

if TYPE_CHECKING:
    from auqadmm.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Result:
    """The model, how the run ended, and the evidence.

    Attributes
    ----------
    v
        The consensus model (m, C), the intercept's row last where there is one.
    status, message
        How the run ended, and a sentence to act on.
    n_iter, history
        Iterations, and what was known after each of them.
    certificate
        Objective, KKT residual and duality gap of v for the original problem.
    method
        The name of the method that ran.
    lam, weights
        Multipliers (N, m, C), and the weights that the next iteration would use: with v, a complete warm start. Of a
        method that centres and scales columns inside, weights are those of its own columns.
        None where the method has none.
    classes
        The labels in the order of the model's columns, for losses that have classes.
    has_intercept
        Whether the last row of v is an intercept.
    evidence
        The data that `diagnose` uses; None where none were kept.
    choice
        What `method="auto"` chose, why, and what was expected of every method; else None.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> result = aq.solve(problem)
    >>> result.coef.round(1), result.intercept
    (array([2., 1.]), 0.0)
    >>> round(result.objective, 4)
    3.0
    >>> result.certificate.evidence
    'proved'
    """

    v: Tensor
    status: Status
    message: str
    n_iter: int
    history: History
    certificate: Certificate
    method: str
    lam: Tensor | None = field(default=None, repr=False)
    weights: Weights | None = field(default=None, repr=False)
    classes: np.ndarray | None = None
    has_intercept: bool = False
    evidence: Evidence | None = field(default=None, repr=False)
    choice: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Three lines: how the run ended, the sentence, and the available attributes."""
        rounds = self.history[-1].rounds if len(self.history) else 0
        took = f"{self.n_iter} iteration{'s' * (self.n_iter != 1)}, {rounds} round{'s' * (rounds != 1)}"
        intercept = f", intercept {np.shape(self.intercept) or f'{self.intercept:.6g}'}" * self.has_intercept
        return (
            f"Result: {self.status} by {self.method} after {took}\n"
            f"  {shorten(self.message, 160, placeholder='…')}\n"
            f"  objective {self.objective:.9g}, coef {self.coef.shape}{intercept}"
        )

    @property
    def coef(self) -> np.ndarray:
        """Coefficients without the intercept: (m,) for one column, else (m, C); logits are X @ coef + intercept."""
        v = self.v.detach().cpu().numpy()
        coef = v[:-1] if self.has_intercept else v
        return coef[:, 0] if coef.shape[1] == 1 else coef

    @property
    def intercept(self) -> np.ndarray | float:
        """The intercept: a number for one column, else (C,); zero where the problem has none."""
        C = self.v.shape[1]
        row = self.v[-1].detach().cpu().numpy() if self.has_intercept else np.zeros(C)
        return float(row[0]) if C == 1 else row

    @property
    def objective(self) -> float:
        """F(v), as the certificate has it."""
        return self.certificate.objective

    @property
    def warm_start(self) -> WarmStart:
        """Everything a later run needs to continue from this one."""
        return WarmStart(self.v, self.lam, self.weights, self.method)

    def explain(self) -> str:
        """Why this method: what was expected of each, beside what happened.

        Returns
        -------
        str
            Lines to print; one sentence where the method was not chosen by "auto".

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
        >>> print(aq.solve(problem, "lbfgs").explain())
        The method lbfgs was asked for; 'auto' estimates what each would cost.
        """
        if self.choice is None:
            return f"The method {self.method} was asked for; 'auto' estimates what each would cost."
        return self.choice.explain()

    def diagnose(self, problem: Problem | None = None) -> Diagnosis:
        """Why the run did not converge: findings, each with one setting to try next.

        Parameters
        ----------
        problem
            The problem that was solved, to check its features as well; its blocks must be in this process.

        Returns
        -------
        Diagnosis
            Findings, the first to act on first; none where the run converged.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
        >>> print(aq.solve(problem).diagnose().summary)
        Converged after 1 iterations: nothing to diagnose.
        >>> slow = aq.solve(problem, aq.methods.C(rho=1e4), max_iter=20)
        >>> [finding.code for finding in slow.diagnose(problem)]
        ['penalty-too-large']
        """
        return diagnose(self, problem)
