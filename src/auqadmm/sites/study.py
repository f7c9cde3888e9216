"""A run with sites before its first round: what is asked of them, their terms, the plan, and columns they agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from auqadmm.core.reduce import WorkerLost
from auqadmm.engines import protocol
from auqadmm.errors import InputError
from auqadmm.files.encoding import Encoding, FormulaEncoding
from auqadmm.files.preprocessing import Agreed, Settings, Summary, merge
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Task, check_labels
from auqadmm.formula.design import designed, merged_levels
from auqadmm.formula.parsing import Formula, parse
from auqadmm.problem.agreement import verdict
from auqadmm.problem.regularizers import L2, Regularizer, Zero
from auqadmm.sites.answers import added, understood
from auqadmm.sites.designs import SitePool
from auqadmm.sites.ledger import Ledger
from auqadmm.sites.policy import Plan
from auqadmm.sites.tables import Wanted

if TYPE_CHECKING:
    from auqadmm.sites.hub import Hub

NEWTON_MOST = 300  # columns up to which Newton's method is chosen where only sums are allowed; chosen, not measured


class Link(Protocol):
    """Carries messages to sites by name; for a lost one the answer is the reason, as text."""

    def call(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | str]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class HubLink:
    """One run of a hub."""

    hub: Hub

    def call(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | str]:
        return self.hub.call(messages, timeout)

    def close(self) -> None:
        self.hub.release()


@dataclass(frozen=True)
class SiteData:
    """A data set that sites have under this name: what `Problem(blocks=…)` takes for `engine=aq.Sites(…)`.

    Parameters
    ----------
    data
        Its name in the files of the sites.
    target
        The column to be predicted.
    features
        Columns to predict from; None for all that every site allows.
    labels
        Is the target a label? Else it is a number.
    standardize
        Whether columns are centred and scaled over all sites; coefficients are then per standard deviation.
    weight, offset
        Columns of sample weights and offsets.
    asked
        All of the above and more (a family, times of events, …) in one object, as the command line asks for it.
    cv
        What `Result.quality` will be asked for: a number of folds, or "sites". Sites cut their rows themselves.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.SiteData("heart", target="sick").data
    'heart'
    """

    data: str
    target: str
    features: tuple[str, ...] | None = None
    labels: bool = True
    standardize: bool = True
    weight: str | None = None
    offset: str | None = None
    cv: int | str | None = None
    asked: Wanted | None = field(default=None, repr=False)

    def __call__(self, rank: int, world: int) -> Sequence[object]:
        raise InputError("SiteData lives at sites: pass engine=aq.Sites(…) to solve.")

    @property
    def wanted(self) -> Wanted:
        if self.asked is not None:
            return self.asked
        roles = Roles(
            target=self.target,
            features=self.features,
            labels=self.labels,
            weight=self.weight,
            offset=self.offset,
        )
        return Wanted(
            roles,
            Settings(standardize=self.standardize),
            Task("logistic" if self.labels else "elastic-net", intercept=False),
            cv="" if self.cv is None else str(self.cv),
        )


@dataclass
class Study:
    """A data set of all sites, opened: names of sites in order, what they allow, and the columns that all have."""

    link: Link
    names: tuple[str, ...]
    timeout: float
    data: str = ""
    calls: int = 0
    terms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    masked: bool = False
    agreed: Agreed | None = None
    ledger: Ledger = field(default_factory=Ledger)
    note: str = ""  # why the method is another one than was asked for

    # ------------------------------------------------------------------ before the first round
    def open(self, data: str) -> None:
        """Ask every site for its terms; masks are used where any asks for them."""
        self.data = data
        answers = self.ask("open", data)
        self.terms = dict(zip(self.names, answers, strict=True))
        masks = {name: terms["masks"] for name, terms in self.terms.items()}
        asking = [name for name, how in masks.items() if how == "required"]
        never = [name for name, how in masks.items() if how == "never"]
        if asking and never:
            raise InputError(
                f"{asking[0]} asks for masked sums, and {never[0]} allows none: they cannot take part together."
            )
        self.masked = bool(asking)
        shared = [set(terms["columns"]) for terms in self.terms.values()]
        common = set.intersection(*shared)
        self.columns = tuple(name for name in answers[0]["columns"] if name in common)

    @property
    def sums_only(self) -> bool:
        return self.masked or any(terms["sums_only"] for terms in self.terms.values())

    def allowed(self, method: object, g: Regularizer | None = None) -> object:
        """The method: of those that need sums only, where sites allow no more."""
        self.note = ""
        if not self.sums_only or not (isinstance(method, str) and method.lower() == "auto"):
            return method
        self.note = " (The sites allow sums only, so auto chose among methods that need no more.)"
        if len(self.columns) <= NEWTON_MOST:
            return "newton"
        return "lbfgs" if isinstance(g, Zero | L2) else "fista"

    def plan(self, model: str, method: object, wanted: Wanted, rounds: int = 0) -> Wanted:
        """Declare the run; a site that refuses is named. Returns what is wanted, with its columns."""
        roles = wanted.roles
        used = {roles.target, roles.weight, roles.offset, roles.exposure, roles.time, roles.event, roles.entry}
        names = roles.features
        if names is None:
            names = tuple(n for n in self.columns if n not in used and n not in (roles.id, *roles.drop))
            wanted = replace(wanted, picked=False)
        name = method if isinstance(method, str) else getattr(method, "name", type(method).__name__)
        target = roles.target if roles.target is not None else roles.time
        wanted = replace(wanted, roles=replace(roles, features=names))
        others = tuple(n for n in wanted.used if n not in names and n != target)
        plan = Plan(
            data=self.data,
            model=model,
            method=str(name).lower(),
            sites=self.names,
            masked=self.masked,
            columns=names,
            target=target,
            rounds=rounds,
            formula=wanted.formula,
            others=others,
            cv=wanted.cv,
        )
        hellos = self.ask("plan", plan)
        if self.masked:
            self.ask("meet", dict(zip(self.names, hellos, strict=True)))
        return wanted

    def prepare(self, wanted: Wanted) -> Agreed:
        """Agree on an encoding of columns, from names, levels and sums over all sites."""
        told = [Summary.read(message) for message in self.ask("columns", wanted)]
        if wanted.formula is not None:
            return self._designed(parse(wanted.formula), told, wanted)
        names = [n for n, kind in told[0].kinds.items() if any(s.kinds.get(n) == "number" for s in told)]
        first = self._added("sums", names, None)
        weight, x = first["weight"], first["x"]
        mean = x / np.where(weight > 0, weight, 1.0)
        squares = self._added("squares", names, mean)["squares"]
        moments = np.stack([weight, mean, squares])
        merged = [_with_moments(s, names, moments, k == 0) for k, s in enumerate(told)]
        self.agreed = merge(merged, wanted.settings)
        self.ask("encode", self.agreed)
        return self.agreed

    def _designed(self, formula: Formula, told: list[Summary], wanted: Wanted) -> Agreed:
        """The design of a formula: levels are told, states of transforms are sums."""
        agreed = merge(told, wanted.settings)
        check_labels(agreed, wanted.task)
        texts = {column.name: column.levels or () for column in agreed.encoding.categories}
        factors = [name for name in formula.categories if name not in texts]
        numbers = {name: merged_levels(name, [s.factors.get(name, ()) for s in told]) for name in factors}
        design = designed(formula, texts, numbers, SitePool(self._transformed))
        names = self.ask("features", design.message())
        design = design.having(tuple(names[0]))
        self.ask("encode", replace(agreed, encoding=Encoding.none(())), design.message())
        self.agreed = replace(agreed, encoding=FormulaEncoding(design))
        return self.agreed

    def _transformed(self, what: str, key: str, numbers: tuple[float, ...]) -> dict[str, np.ndarray]:
        return {name: x.numpy() for name, x in added(self.ask("design", what, key, numbers)).items()}

    def _added(self, what: str, names: list[str], centre: np.ndarray | None) -> dict[str, np.ndarray]:
        parts = self.ask("add", what, tuple(names), centre)
        return {name: x.numpy() for name, x in added(parts).items()}

    # ------------------------------------------------------------------ messages
    def ask(self, do: str, *args: object) -> list[Any]:
        """The same request to all sites; a refusal is one sentence that names the site."""
        self.calls += 1
        self.ledger.asking(do)
        message, _ = protocol.request(self.calls, set(), do, args, (0, None))
        replies = self.link.call(dict.fromkeys(self.names, message), self.timeout)
        if lost := {name: why for name, why in replies.items() if isinstance(why, str)}:
            raise WorkerLost(" ".join(f"Site {name} was lost ({why})." for name, why in lost.items()))
        told = {name: data for name in self.names if isinstance(data := replies[name], bytes)}
        answers = understood(told, do, self.calls)
        self.ledger.read(dict(zip(told, answers, strict=True)))
        return verdict(answers, who=[f"site {name}" for name in self.names])


def _with_moments(summary: Summary, names: list[str], moments: np.ndarray, first: bool) -> Summary:
    """One summary has the moments of all sites, the others none."""
    own = [n for n, kind in summary.kinds.items() if kind == "number"]
    place = {n: k for k, n in enumerate(names)}
    table = np.stack([moments[:, place[n]] for n in own], axis=1) if first and own else np.zeros((3, len(own)))
    target = summary.target
    if target is not None:
        target = tuple(moments[:, -1].tolist()) if first else (0.0, 0.0, 0.0)
    return replace(summary, moments=table, target=target)
