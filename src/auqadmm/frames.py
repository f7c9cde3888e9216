"""Data frames of sites, and a formula: one fitted model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from sklearn.exceptions import ConvergenceWarning

from auqadmm.api import solve
from auqadmm.core.result import Result
from auqadmm.core.state import Status
from auqadmm.files import suspects
from auqadmm.files.encoding import FormulaEncoding
from auqadmm.files.fitted_glm import FittedGLM
from auqadmm.files.model import Parts
from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles, Sheet, chosen
from auqadmm.files.tabular_arrow import sheet_of
from auqadmm.files.training import Prepared, Task, agreed_blocks, model_parts
from auqadmm.formula.design import reference_of
from auqadmm.formula.parsing import Formula, parse
from auqadmm.inference.size import SizeSearch
from auqadmm.inference.statistics import WITHOUT_NULL
from auqadmm.problem import InputError
from auqadmm.problem.families import NamedFamily
from auqadmm.words import quoted

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from auqadmm.core.history import History
    from auqadmm.core.stopping import Certificate
    from auqadmm.inference import Inference

Frames: TypeAlias = "pd.DataFrame | Sequence[pd.DataFrame] | Mapping[str, pd.DataFrame]"
PLAIN = Settings(advice=suspects.FRAME)
SITES = "sites"  # the column that labels given as an array become


class FormulaModel(FittedGLM):
    """A model that `fit_formula` has fitted: coefficients by name, standard errors, predictions for data frames.

    Parameters
    ----------
    parts
        The design and the coefficients: what `save` keeps.
    result
        The run.
    dropped
        Rows that were left out.

    Attributes
    ----------
    formula_ : str
        As it was given.
    names_ : tuple of str
        Of the coefficients, as formulaic prints them, without the intercept.
    coef_, intercept_ : ndarray of shape (len(names_),), float
        The intercept is 0 where the formula has none, or sites have their own.
    levels_, reference_ : dict
        The levels of every factor in all rows, in order, and the one that the others are compared with.
    dropped_ : dict
        Rows that were left out as they lack a value, by site or data set.
    status_, message_, certificate_, history_
        Of the run.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> import auqadmm as aq
    >>> data = pd.DataFrame({"dose": [0.0, 1.0, 1.0, 2.0, 3.0, 4.0], "ward": ["a", "a", "b", "b", "a", "b"]})
    >>> data["days"] = [1.0, 2.0, 3.0, 6.0, 7.0, 9.0]
    >>> model = aq.fit_formula("days ~ dose + ward", data, sites=["n", "n", "n", "s", "s", "s"])
    >>> model.inference_.table["coef"].round(2).to_dict()
    {'dose': 2.0, 'ward[T.b]': 0.67, 'Intercept': 0.67}
    """

    def __init__(self, parts: Parts, result: Result, dropped: Mapping[str, int]) -> None:
        super().__init__(parts)
        self.result = result
        self.dropped = dropped

    @property
    def formula_(self) -> str:
        return self._encoding.design.formula.text

    @property
    def names_(self) -> tuple[str, ...]:
        return self._encoding.features

    @property
    def levels_(self) -> dict[str, tuple[Any, ...]]:
        return dict(self._encoding.design.levels)

    @property
    def reference_(self) -> dict[str, Any]:
        levels = {name: reference_of(self._encoding.design, name) for name in self.levels_}
        return {name: level for name, level in levels.items() if level is not None}

    @property
    def _encoding(self) -> FormulaEncoding:
        assert isinstance(self.encoding_, FormulaEncoding)
        return self.encoding_

    @property
    def dropped_(self) -> dict[str, int]:
        return dict(self.dropped)

    @property
    def status_(self) -> Status:
        return self.result.status

    @property
    def message_(self) -> str:
        return self.result.message

    @property
    def certificate_(self) -> Certificate | None:
        return self.result.certificate

    @property
    def history_(self) -> History:
        return self.result.history

    @property
    def inference_(self) -> Inference:
        """Standard errors, tests and fit, with the defaults of `Result.inference`."""
        return self.inference()

    def inference(self, cov: str = "model", level: float = 0.95, **options: Any) -> Inference:
        """Standard errors, tests and fit.

        Parameters
        ----------
        cov, level, options
            As in `Result.inference`.

        Returns
        -------
        Inference
            With `table`, `summary()` and more.
        """
        inference = self.result.inference(cov, level, **options)
        names = (*inference.names[:-1], "Intercept") if self.result.has_intercept else inference.names
        return replace(inference, names=names)

    def summary(self) -> str:
        """The table of coefficients and the fit as text.

        Returns
        -------
        str
            Lines to print.
        """
        return self.inference_.summary()


def fit_formula(
    formula: str,
    data: Frames,
    family: str = "gaussian",
    sites: str | ArrayLike | None = None,
    *,
    link: str | None = None,
    parameter: float | None = None,
    exposure: str | None = None,
    offset: str | None = None,
    weights: str | None = None,
    l1: float = 0.0,
    l2: float = 0.0,
    site_intercepts: bool = False,
    method: Any = "auto",
    engine: Any = "local",
    max_iter: int = 1000,
    tol: float = 1e-18,
) -> FormulaModel:
    """Fit a generalised linear model that a formula describes, each site keeping its own rows.

    Factor levels are those of all sites together, sorted; the first is the reference. Means, norms and knots of
    `center`, `scale`, `poly`, `bs`, `cr` come from sums over all sites: knots are quantiles of values rounded to
    between 1/128 and 1/64 of a standard deviation, so that they do not depend on who holds which rows. Rows that lack a
    value in a column that is used are left out, at every site alike; `dropped_` counts them.

    Parameters
    ----------
    formula
        Such as "sick ~ age + C(stage) + bs(bmi, df=4) + age:C(stage) + offset(log_days)": the target, a column, then
        terms as in R and formulaic. `0 +` or `- 1` leaves the intercept out; `C(stage, Treatment("b"))` chooses the
        reference. There are arithmetic inside I(…), log, exp, sqrt and the like, center, scale, poly, bs, cr, cs, cc.
    data
        One data frame; or a list or a dictionary of data frames, one per site.
    family, link, parameter
        As in `ConsensusGLM`; the parameter is k of "negative-binomial" (None: the most likely one), the power of
        "tweedie", delta of "huber", q of "quantile". The target of "binomial" has two values; the model is of the
        second in sorted order.
    sites
        For one data frame: the column that says which site owns a row, or labels, one per row. None: one site.
    exposure, offset, weights
        Columns: size or time at risk (for logarithmic links), a number added to the logit, and how often a row counts.
    l1, l2
        Strengths of penalties beside the sum of the losses; those of `ConsensusGLM`.
    site_intercepts
        An intercept of its own for every site, found and kept there.
    method, engine, max_iter, tol
        As in `ConsensusGLM`.

    Returns
    -------
    FormulaModel
        With `coef_`, `names_`, `inference_` and `predict(frame)`; `save` keeps it.

    Raises
    ------
    InputError
        The formula, a column, a level or a row cannot be used; the message says which and what to do.
    AuqadmmError
        formulaic is not installed.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> import auqadmm as aq
    >>> rng = np.random.default_rng(0)
    >>> data = pd.DataFrame({"age": rng.normal(50, 10, 300), "ward": rng.choice(["a", "b", "c"], 300)})
    >>> data["hospital"] = np.arange(300) % 3
    >>> data["sick"] = rng.uniform(size=300) < 1 / (1 + np.exp(-0.05 * (data["age"] - 50)))
    >>> model = aq.fit_formula("sick ~ age + ward", data, "binomial", sites="hospital")
    >>> model.names_
    ('age', 'ward[T.b]', 'ward[T.c]')
    >>> model.reference_
    {'ward': 'a'}
    >>> model.predict(data.head(2)).round(1)
    array([0.6, 0.5])
    """
    read = parse(formula)
    named = NamedFamily.of(family, link, parameter)
    _check(read, named, exposure, l1, l2, site_intercepts)
    task = Task("glm", float(l1), float(l2), read.intercept, family=named, site_intercepts=bool(site_intercepts))
    roles = Roles(
        target=read.target,
        weight=weights,
        features=read.columns,
        labels=task.labels,
        asker="the formula",
        offset=offset,
        exposure=exposure,
        gaps=True,
    )
    prepared, kept = _prepared(read, data, sites, roles, task)
    run = partial(solve, method=method, engine=engine, max_iter=max_iter, certificate_tol=tol, inference=True)
    if named.name == "negative-binomial" and parameter is None:
        task, result, _ = sized_fit(prepared, task, run)
    else:
        result = run(prepared.problem(task))
    if result.status not in (Status.converged, Status.rounding):
        warnings.warn(f"fit_formula: {result.message}", ConvergenceWarning, stacklevel=2)
    training = {"status": str(result.status), "message": result.message}
    parts = model_parts(result, prepared.agreed, task, kept.special, training, {})
    return FormulaModel(parts, result, dict(prepared.agreed.dropped))


def sized_fit(
    prepared: Prepared, task: Task, run: Callable[..., Result], together: bool = False
) -> tuple[Task, Result, int]:
    """The task with the most likely k of the negative binomial, its result, and the rounds of all fits."""

    def sized(k: float) -> Task:
        assert task.family is not None
        return replace(task, family=NamedFamily.of(task.family.name, task.family.link, k))

    def fitted(k: float, last: Result | None, whole: bool) -> Result:
        problem = prepared.problem(sized(k), together)
        return run(problem, warm_start=None if last is None else last.v, inference=whole or WITHOUT_NULL)

    k, result, rounds = SizeSearch(fitted, quadratic=task.l1 == 0)()
    return sized(k), result, rounds


def _check(
    formula: Formula, family: NamedFamily, exposure: str | None, l1: float, l2: float, site_intercepts: bool
) -> None:
    if exposure is not None and not family.takes_exposure:
        raise InputError("exposure is for families with a logarithmic link; use offset, on the scale of the logit.")
    if site_intercepts and not formula.intercept:
        raise InputError("Site intercepts are in place of the common one: leave `0 +` or `- 1` out of the formula.")
    for name, value in (("l1", l1), ("l2", l2)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise InputError(f"{name} must be a number from 0 on, got {value!r}.")


# ---------------------------------------------------------------------- frames
def _prepared(
    formula: Formula, data: Frames, sites: str | ArrayLike | None, roles: Roles, task: Task
) -> tuple[Prepared, Roles]:
    """The blocks, one per site, and the columns that were read."""
    if hasattr(data, "columns"):
        frame: Any = data
        site, labels = (sites, None) if isinstance(sites, str) or sites is None else (SITES, sites)
        own = replace(roles, site=site)
        prepared = agreed_blocks(lambda: [_sheet("data", frame, own, labels)], own, PLAIN, task, formula=formula)
        blocks = tuple(replace(block, name=_label(block.name)) for block in prepared.blocks)
        return replace(prepared, blocks=blocks), own if labels is None else roles
    if sites is not None:
        raise InputError("sites has no place where data is a list: every data frame is a site.")
    parts = data if isinstance(data, Mapping) else {f"block {k}": part for k, part in enumerate(_listed(data))}
    if not parts:
        raise InputError("There are no data frames; pass at least one.")
    made = agreed_blocks(
        lambda: [_sheet(str(name), part, roles, None) for name, part in parts.items()],
        roles,
        PLAIN,
        task,
        formula=formula,
    )
    return made, roles


def _label(name: str) -> str:
    """Of "data, site 'north'", north."""
    site = name.removeprefix("data, site ")
    return site[1:-1] if site.startswith("'") else site


def _listed(data: object) -> list[Any]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise InputError(f"data must be a data frame, or a list or dictionary of them, got {type(data).__name__}.")
    return list(data)


def _sheet(source: str, frame: Any, roles: Roles, labels: ArrayLike | None) -> Sheet:
    if not hasattr(frame, "columns"):
        raise InputError(f"{source}: data must be a data frame, got {type(frame).__name__}.")
    have = {str(name): name for name in (frame.column_names if isinstance(frame, pa.Table) else frame.columns)}
    names = [*have, SITES] if labels is not None else [*have]
    if labels is not None and SITES in (roles.target, *(roles.features or ())):
        raise InputError(f"{source}: column {quoted(SITES)} is in the formula; say sites={SITES!r}, or rename it.")
    features = chosen(source, list(dict.fromkeys(names)), roles)
    if len(frame) == 0:
        raise InputError(f"{source} has no rows; leave it out.")
    columns = {
        name: _arrow(source, name, frame[have[name]])
        for name in dict.fromkeys([*features, *roles.special.values()])
        if name in have and not (labels is not None and name == SITES)
    }
    if labels is not None:
        values = np.asarray(labels) if hasattr(labels, "dtype") else np.asarray(labels, dtype=object)
        if values.shape != (len(frame),):
            raise InputError(f"sites has shape {values.shape} but data has {len(frame)} rows; give one label per row.")
        columns[SITES] = _arrow(source, SITES, values)
    return sheet_of(source, pa.table(columns), features, roles)


def _arrow(source: str, name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray):
        return values
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{source}: column {quoted(name)} cannot be read ({quoted(str(error), 120)}).") from None
