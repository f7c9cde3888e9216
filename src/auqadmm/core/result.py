"""What a run returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from auqadmm.core.history import History
from auqadmm.core.state import Status, WarmStart
from auqadmm.core.stopping import Certificate
from auqadmm.diagnosis.diagnosis import Diagnosis, diagnose
from auqadmm.diagnosis.evidence import Evidence
from auqadmm.errors import InputError
from auqadmm.metrics.weights import Weights
from auqadmm.verdict.queries import ColumnMoments

if TYPE_CHECKING:
    from auqadmm.inference.inference import Inference
    from auqadmm.inference.statistics import Statistics
    from auqadmm.problem.problem import Problem
    from auqadmm.quality.quality import Quality


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
    moments
        What round 0 learnt of the columns, where it ran.
    statistics
        The sums of `inference`, where `solve(…, inference=True)` asked for them.
    figures
        `quality()`, where `solve(…, quality=True)` asked for it.
    source
        Where the problem is, for `inference` and `quality`; not part of a pickled result.

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
    moments: ColumnMoments | None = field(default=None, repr=False)
    statistics: Statistics | None = field(default=None, repr=False)
    figures: Quality | None = field(default=None, repr=False)
    source: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "source": None}  # data are no part of a result

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

    def inference(
        self,
        cov: str = "model",
        level: float = 0.95,
        *,
        weights: str = "frequency",
        dispersion: float | str | None = None,
        use_t: bool | None = None,
        correction: bool = False,
        exponentiate: bool = False,
        sites: bool = False,
        columns: Sequence[str | int] | None = None,
        reference: object = None,
    ) -> Inference:
        """Standard errors, intervals and tests of the coefficients, and how well the model fits.

        Takes one more reduction: at most four triangles of m(m + 1)/2 numbers, sums over all blocks. Where
        `solve(…, inference=True)` did not ask for it, the problem is placed once more; with engine "torch" every
        process must call. Four things take more: a run that ended farther than rounding from the maximum of a
        likelihood, however small its tolerance was (a step of Newton's method and the same sums once more, so that
        coefficients, errors and p-values are right to about ten digits), columns whose means are not known (one round),
        the null model of rows with offsets (a few, of three numbers), and `sites=True` (2m numbers of every site).
        `rounds` and `numbers` of what is returned count all. A second call with the same `weights` and `sites` takes
        nothing.

        Parameters
        ----------
        cov
            "model": the observed information, with the dispersion; "expected": the expected one, as statsmodels' GLM;
            "robust": White's HC0; "cluster": robust to dependence of rows within a block.
        level
            Of intervals.
        weights
            What sample weights are: "frequency", a row of weight w is w rows; "precision", its variance is divided by
            w.
        dispersion
            None: the family's, 1 or Pearson's statistic over n − m; "pearson" (a quasi-likelihood); or a number.
        use_t
            Student's distribution in place of the normal one; None: where the dispersion is estimated.
        correction
            For "cluster": times N/(N − 1)·(n − 1)/(n − m), N the number of sites.
        exponentiate
            Show exp(coef): ratios of odds, rates, hazards or means.
        sites
            Also ask every block for its own one-step estimate, for `Inference.sites` and `Inference.plot_forest`.
        columns
            Names or numbers of the coefficients that are wanted, where there are too many unknowns (4096) for the
            whole: with `cov` "model" or "expected", by products with the information, a round for all of them at a
            time, until `Inference.accuracy` is below 1e-7.
        reference
            Of `Multinomial`: the label of the class that all others are compared with; None: the first one.

        Returns
        -------
        Inference
            With `table`, `summary()`, `vcov`, `deviance`, `aic`, `heterogeneity` and more. Penalised fits have no
            p-values, and say so.

        Raises
        ------
        InputError
            There are no such numbers: columns are collinear or separate the outcomes (they are named), the model is not
            at its optimum, or the loss is no likelihood; or an option has a value that it cannot have.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]])
        >>> y = np.array([1.0, 2.0, 3.0, 6.0, 7.0, 8.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.Zero(), [(X[:3], y[:3]), (X[3:], y[3:])], intercept=True)
        >>> found = aq.solve(problem).inference(level=0.9)
        >>> found.table.round(3)
                    coef     se      t      p    low   high
        x0         1.892  0.250  7.570  0.002  1.359  2.425
        intercept  1.031  0.568  1.814  0.144 -0.181  2.242
        >>> found.rounds
        1
        """
        from auqadmm.inference.inference import infer

        if columns is not None and (sites or cov not in ("model", "expected")):
            raise InputError("columns has no place beside sites=True, or cov other than 'model' and 'expected'.")
        at = self._measured(weights, sites, columns, cov == "expected", reference)
        options: dict[str, Any] = {"dispersion": dispersion, "use_t": use_t, "correction": correction}
        return infer(at, cov, level, exponentiate=exponentiate, **options)

    def _measured(
        self,
        weights: str,
        sites: bool,
        columns: Sequence[str | int] | None = None,
        expected: bool = False,
        reference: object = None,
    ) -> Statistics:
        """The sums at v, kept for the next call where they are those of all columns."""
        if weights not in ("frequency", "precision"):
            raise InputError(f"weights must be 'frequency' or 'precision', got {weights!r}.")
        statistics = vars(self).setdefault("_known_statistics", {})
        plain = columns is None and reference is None
        known = statistics.get((weights, sites)) or statistics.get((weights, True)) if plain else None
        if known is None and self.statistics is not None and weights == "frequency" and not sites and plain:
            known = self.statistics
        if known is None and self.source is None:
            raise InputError(
                "This result does not know its problem any more: it was loaded, or made by hand. Solve with "
                "inference=True."
            )
        if not plain:
            asked = weights == "frequency", sites, columns, expected, reference
            return self.source.measured(self.v, self.moments, *asked)
        statistics[weights, sites] = known or self.source.measured(self.v, self.moments, weights == "frequency", sites)
        return statistics[weights, sites]

    def quality(self, cv: int | str | None = None, *, seed: int = 0, sites: bool = True) -> Quality:
        """How good the model is: accuracy, AUC, calibration, errors, explained deviance, as suits the loss.

        Of all rows by sums over blocks: two reductions of some thousand numbers at most, and a few of six for the
        calibration of penalised models. Where `solve(…, quality=True)` did not ask for it, the problem is placed once
        more; with engine "torch" every process must call.

        Parameters
        ----------
        cv
            None: the rows that the model was fitted to. A number of folds: each row is judged by a model that was
            fitted without its fold; folds are made within every block, by `seed`, the same on every engine. "sites":
            each block by a model of the others. Fits begin at this model, with the settings of its run.
        seed
            Of the folds.
        sites
            Also ask every block for its own figures, which are then of this block alone.

        Returns
        -------
        Quality
            With `figures`, `calibration`, `sites` and `summary()`.

        Raises
        ------
        InputError
            The loss is not one of rows, or an option has a value that it cannot have.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]])
        >>> y = np.array([1.0, 2.0, 3.0, 6.0, 7.0, 8.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.Zero(), [(X[:3], y[:3]), (X[3:], y[3:])], intercept=True)
        >>> result = aq.solve(problem)
        >>> round(result.quality().figures["r2"], 3), round(result.quality(cv=3).figures["r2"], 3)
        (0.935, 0.882)
        """
        if cv is None and self.figures is not None and bool(self.figures.site_names) == sites:
            return self.figures
        if self.source is None:
            raise InputError(
                "This result does not know its problem any more: it was loaded, or made by hand. Solve with "
                "quality=True."
            )
        return self.source.quality(self.v, self.moments, cv, seed, sites)

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
