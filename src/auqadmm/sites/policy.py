"""What a site lets out: its owner's rules, checked at the site before anything leaves, whatever is asked.

    of the data      enough rows, enough of them in every class, category and value of a binary column, enough events
    of the run       who takes part, which columns, models and methods, masked sums or not, how much per day
    of every ask     sums only or not; how large v may be, at how many points; how many rows a weighted sum is made of

**Effective rows.** Who may choose v can choose one at which a single row outweighs all others: a sum of gradients is
then that row. So of every weighted sum Σ w_i x_i, w = φ' for gradients and φ'' for curvature, in every column of the
model, (Σ|w_i|)² / Σw_i² must be large, and no row may have more than a third of Σ|w_i|. Differences of gradients at
two near points are curvature, so both are checked wherever either is.

Defaults are the limits of DataSHIELD and vantage6.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.rows import Point, RowPoint
from auqadmm.errors import AuqadmmError, InputError
from auqadmm.problem.cox import CoxPoint
from auqadmm.problem.made_of_losses import ProfilePoint
from auqadmm.words import quoted


class PolicyError(AuqadmmError, PermissionError):
    """A site's policy does not allow what was asked; nothing was sent."""


WORDS: Mapping[str, tuple[str, ...]] = {  # rules that are one of a few words
    "masks": ("required", "allowed", "never"),
    "rosters": ("same", "any"),
    "approve": ("ask", "no"),
}


@dataclass(frozen=True)
class Policy:
    """The rules of one site, as in the section [policy] of its file.

    Parameters
    ----------
    min_rows
        Rows that a data set must have.
    min_cell
        Rows in every class, every category and each value of a binary column.
    max_ratio
        Unknowns per row; with masks per row of all sites together.
    min_events
        Events that survival data must have.
    min_sites
        Sites that must take part in a run.
    min_effective_rows, largest_share
        Of every weighted sum: see above.
    models, methods
        What may be fitted, and how; None for anything.
    sums_only
        Whether nothing of this site alone may be asked for.
    masks
        "required", "allowed" or "never": sums in which the numbers of one site cannot be seen.
    site_figures
        Whether estimates and quality of this site alone may be asked for.
    bins
        Whether rows may be counted by bins of a score, in masked sums: AUC and calibration curves need it.
    rosters
        "same": masked sums over the same columns with the same sites only, or with `min_sites` others; "any": with
        any sites.
    largest_v
        The largest ‖v‖ of a model in standardised columns.
    points_per_run
        Different v at which one run may ask.
    folds
        Into how many folds rows are cut for cross-validation; below 2 for none.
    rounds_per_day, seconds_per_day
        Answers, and seconds of computing, that are given in 24 hours.
    approve
        "ask": every plan waits for a person at the site; "no": the rules decide.
    testing
        Whether the operations of this library's own tests are served.
    """

    min_rows: int = 10
    min_cell: int = 3
    max_ratio: float = 0.33
    min_events: int = 5
    min_sites: int = 3
    min_effective_rows: float = 10.0
    largest_share: float = 1 / 3
    models: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    sums_only: bool = False
    masks: str = "allowed"
    site_figures: bool = True
    bins: bool = True
    rosters: str = "same"
    largest_v: float = 1e3
    points_per_run: int = 5000
    folds: int = 5
    rounds_per_day: int = 100_000
    seconds_per_day: float = 86_400.0
    approve: str = "no"
    testing: bool = False

    @staticmethod
    def read(where: str, given: Mapping[str, Any]) -> Policy:
        """From the section of a file; one sentence for what is wrong with it."""
        hints = get_type_hints(Policy)
        known = {f.name for f in fields(Policy)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise InputError(f"{where}: the policy has no rule {quoted(name)}; it has {', '.join(sorted(known))}.")
            if isinstance(value, list):
                value = tuple(value)
            kinds = get_args(hints[name]) or (hints[name],)
            if not any(_is(value, kind) for kind in kinds):
                raise InputError(f"{where}: the rule {name} cannot be {quoted(value)}.")
            values[name] = value
        policy = Policy(**values)
        for name, allowed in WORDS.items():
            if getattr(policy, name) not in allowed:
                raise InputError(f"{where}: the rule {name} must be one of {', '.join(allowed)}.")
        return policy

    def terms(self) -> dict[str, Any]:
        """What the coordinator must know before it plans."""
        return {name: getattr(self, name) for name in ("sums_only", "masks", "min_sites", "approve", "bins")}


def _is(value: object, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind in (bool, str):
        return isinstance(value, kind)
    return isinstance(value, tuple) and all(isinstance(x, str) for x in value)


# ---------------------------------------------------------------------- of the run
LEAVING_SITES = "sites"  # cross-validation that leaves one site out after the other
SUMS = ("newton", "lbfgs", "owl-qn", "fista", "c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm")


@dataclass(frozen=True)
class Plan:
    """What a coordinator wants to do, before the first round."""

    data: str
    model: str
    method: str
    sites: tuple[str, ...]
    masked: bool
    columns: tuple[str, ...] = ()
    target: str | None = None
    rounds: int = 0
    formula: str | None = None
    others: tuple[str, ...] = ()  # columns that are neither features nor the target: weights, offsets, events
    cv: str = ""  # a number of folds, or "sites"

    @property
    def used(self) -> set[str]:
        """All columns that may be read."""
        return {*self.columns, *self.others, *([] if self.target is None else [self.target])}

    def words(self) -> str:
        how = "masked sums" if self.masked else "sums of each site"
        formula = "" if self.formula is None else f", formula {quoted(self.formula, 200)}"
        held_out = "" if not self.cv else f" and cross-validate it ({self.cv})"
        return (
            f"fit {self.model} on {quoted(self.data)} ({len(self.columns)} columns, target {quoted(self.target)}"
            f"{formula}) by {self.method}{held_out} with {', '.join(self.sites)}; {how} leave."
        )


def check_plan(policy: Policy, plan: Plan, own: str, roster: Sequence[str]) -> None:
    """Refuse a run before its first round."""
    if own not in plan.sites:
        raise PolicyError(f"the plan does not name this site ({own})")
    if len(plan.sites) < policy.min_sites:
        raise PolicyError(f"{len(plan.sites)} sites take part, and the policy asks for {policy.min_sites}")
    if policy.models is not None and plan.model not in policy.models:
        raise PolicyError(f"the policy allows {', '.join(policy.models) or 'no model'}, not {plan.model}")
    if policy.methods is not None and plan.method not in policy.methods:
        raise PolicyError(f"the policy allows the methods {', '.join(policy.methods) or 'none'}, not {plan.method}")
    if policy.sums_only and plan.method not in SUMS:
        raise PolicyError(f"the policy allows sums only, and {plan.method} asks for more; use one of {', '.join(SUMS)}")
    if policy.masks == "required" and not plan.masked:
        raise PolicyError("the policy asks for masked sums; all sites must allow them")
    if policy.masks == "never" and plan.masked:
        raise PolicyError("the policy allows no masks")
    if plan.cv == LEAVING_SITES and plan.masked:
        raise PolicyError("masked sums with and without one site would show that site alone, so none is left out")
    if plan.cv not in ("", LEAVING_SITES, str(policy.folds)):
        cut = f"rows are cut into {policy.folds} folds here" if policy.folds > 1 else "rows are not cut into folds here"
        raise PolicyError(f"{cut}, since two ways of cutting them would tell of the few rows in which they differ")
    strangers = [name for name in plan.sites if name != own and name not in roster]
    if plan.masked and strangers:
        raise PolicyError(f"the roster of this site has no key of {', '.join(strangers)}, which masks need")


# ---------------------------------------------------------------------- of the data
def check_cells(policy: Policy, what: str, counts: Mapping[Any, int] | Sequence[int]) -> None:
    """Every class or category has enough rows; the message names no value and no count."""
    numbers = list(counts.values()) if isinstance(counts, Mapping) else list(counts)
    small = sum(0 < n < policy.min_cell for n in numbers)
    if small:
        raise PolicyError(
            f"{what} has {small} {'value' if small == 1 else 'values'} with fewer than {policy.min_cell} rows"
        )


def check_binary(policy: Policy, names: Sequence[str], X: np.ndarray, where: str = "") -> None:
    """Both values of a column that has two are of enough rows."""
    for k, name in enumerate(names):
        values, counts = np.unique(X[:, k][np.isfinite(X[:, k])], return_counts=True)
        if len(values) == 2:
            check_cells(policy, f"column {quoted(name)}{where}", counts.tolist())


def check_size(policy: Policy, unknowns: int, rows: int, together: bool) -> None:
    if unknowns > policy.max_ratio * rows:
        whose = "of all sites" if together else "of this site"
        raise PolicyError(
            f"the model has {unknowns} unknowns for the rows {whose}, more than {policy.max_ratio:g} per row"
        )


# ---------------------------------------------------------------------- of every ask
@dataclass
class Points:
    """The v at which a run has asked."""

    policy: Policy
    seen: set[bytes]
    asked: dict[str, int] = field(default_factory=dict)  # operations with other arguments that a coordinator chooses

    def count(self, name: str, leaves: str) -> None:
        """Who may choose directions or constants without end finds the largest rows by trying."""
        self.asked[name] = times = self.asked.get(name, 0) + 1
        if times > (FIGURES_PER_RUN if leaves == "figures" else self.policy.points_per_run):
            raise PolicyError(f"{name!r} was asked for {times} times in one run")

    def check(self, v: Tensor) -> None:
        if not bool(torch.isfinite(v).all()) or float(v.norm()) > self.policy.largest_v:
            raise PolicyError(
                f"a model with ‖v‖ above {self.policy.largest_v:g} was asked about; columns that are nearly "
                "collinear, or separate the classes, lead there"
            )
        self.seen.add(hashlib.sha256(v.detach().double().cpu().numpy().tobytes()).digest())
        if len(self.seen) > self.policy.points_per_run:
            raise PolicyError(f"more than {self.policy.points_per_run} models were asked about in one run")


def row_weights(point: Point) -> dict[str, Tensor]:
    """w_i of every sum that is made of rows at this point, (R, C) each."""
    c = point.shard.row_weight
    if isinstance(point, RowPoint):
        return {"slopes": times(c, point.slope), "curvature": times(c, point.curvature.diagonal())}
    if isinstance(point, ProfilePoint):
        slope = point.loss.inner.row_slope(point._prepared, point.shard.target)
        return {"slopes": times(point._c, slope), "curvature": point._h[:, None]}
    if isinstance(point, CoxPoint):
        return {"slopes": point._at.residual[:, None], "curvature": point._at.expected[:, None]}
    raise PolicyError(f"the rows of a {type(point).__name__} cannot be weighed, so nothing of it leaves")


FIGURES_PER_RUN = 100  # asks for counts by bins and along lines; a report takes about ten


def check_rows(policy: Policy, point: Point) -> None:
    """Refuse sums that few rows dominate, in any column of the model."""
    check_weights(policy, row_weights(point), point.shard.loss.kinked)


def check_weights(policy: Policy, weights: Mapping[str, Tensor], kinked: bool = False) -> None:
    """The same, of weights (R, C); `kinked`: of a loss with corners.

    A sum is left alone where it is exactly zero. One that is merely small tells as much as a large one, once it is
    multiplied; and in single precision nobody knows what a zero would be in double. A loss with corners bends in few
    rows or in none: then the difference of slopes at two near models is the row that went round its corner.
    """
    for what, w in weights.items():
        if not len(w):
            continue
        size = w.abs().double()
        counts = size.amax(0) != 0
        parts = size[:, counts] / size[:, counts].amax(0)  # of the largest: squares neither vanish nor overflow
        total = parts.sum(0)
        strict = w.dtype != torch.float64 or (what == "curvature" and kinked)
        effective = total.square() / parts.square().sum(0)
        # nan is neither small nor large: what is not finite has to fail
        fine = bool((effective >= policy.min_effective_rows).all() and (1 / total <= policy.largest_share).all())
        if not fine or (strict and not bool(counts.all())):
            raise PolicyError(
                f"at the model that was asked about few rows make up the {what} (fewer than "
                f"{policy.min_effective_rows:g} effective rows, or one row with more than "
                f"{policy.largest_share:.0%} of it)"
            )
