"""The coordinator's side: sites as workers of a driver engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from auqadmm.core.reduce import MapFn, WorkerLost
from auqadmm.engines import protocol
from auqadmm.engines.driver import BROUGHT, DriverEngine, cpu_only
from auqadmm.errors import InputError
from auqadmm.files.encoding import Encoding, FormulaEncoding
from auqadmm.files.preprocessing import Agreed, Settings, Summary, merge
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Task, check_labels
from auqadmm.formula.design import designed, merged_levels
from auqadmm.formula.parsing import Formula, parse
from auqadmm.problem import Problem
from auqadmm.problem.agreement import verdict
from auqadmm.problem.regularizers import L2, Regularizer, Zero
from auqadmm.sites.answers import added, understood
from auqadmm.sites.board import Board
from auqadmm.sites.designs import SitePool
from auqadmm.sites.ledger import Ledger
from auqadmm.sites.policy import Plan
from auqadmm.sites.refusals import SitesError
from auqadmm.sites.rules import asked_of
from auqadmm.sites.tables import Wanted

if TYPE_CHECKING:
    from auqadmm.core.result import Result
    from auqadmm.sites.hub import Hub

GONE = ("was started anew", "left", "no sign of life", "no answer within")  # how a hub says that a site is lost
OPERATIONS = ("sum", "minmax", "concat", "gather", "peek")  # requests that name one
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


class SitesPool:
    """Sites as a pool of workers, in order of their names."""

    own_code = False

    def __init__(self, study: Study) -> None:
        self.study = study
        self.names: Sequence[str] = [f"site {name}" for name in study.names]

    def deal(self, blocks: object) -> list[Any]:
        return [BROUGHT] * len(self.names) if isinstance(blocks, SiteData) else [blocks] * len(self.names)

    def call(self, messages: Mapping[int, bytes]) -> dict[int, bytes | str]:
        study = self.study
        by_name = {study.names[r]: m for r, m in messages.items()}
        replies = study.link.call(by_name, study.timeout)
        return {r: replies[study.names[r]] for r in messages if study.names[r] in replies}

    def close(self) -> None:
        return None  # the study stays open: inference asks again


class SitesEngine(DriverEngine):
    """A driver engine whose sums may be masked. `guarded`: models are weighed before they are answered."""

    guarded = True

    def __init__(self, pool: SitesPool, problem: Problem, dtype: torch.dtype) -> None:
        self.study = pool.study
        super().__init__(pool, problem, dtype)

    @property
    def calls(self) -> int:
        return self.study.calls

    @calls.setter
    def calls(self, number: int) -> None:
        self.study.calls = max(number, self.study.calls)

    @property
    def note(self) -> str:
        """What a result's message adds."""
        return self.study.note

    @property
    def bins(self) -> bool:
        """May rows be counted by bins of a score?"""
        return self.study.masked and all(terms.get("bins", True) for terms in self.study.terms.values())

    @property
    def collects(self) -> bool:
        """May anything of one site alone be asked for?"""
        return not self.study.sums_only

    def _asked(self, requests: Mapping[int, tuple[object, ...]]) -> list[Any]:
        do, *args = next(iter(requests.values()))
        self.study.ledger.asking(str(do), asked_of(args[0], None)[0] if do in OPERATIONS else "")
        return super()._asked(requests)

    def _read(self, answers: Mapping[int, bytes], do: str) -> list[Any]:
        told = {self.study.names[r]: data for r, data in answers.items()}
        found = understood(told, do, self.calls)
        self.study.ledger.read(dict(zip(told, found, strict=True)))
        return found

    def map_sum(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        new, parts = self._mapped("sum", fn, blocks, shared)
        return new, added(parts)


class Sites:
    """Sites that connect to this process, as the place where blocks live.

    Parameters
    ----------
    settings
        The path of a file that names them (sites.toml).
    timeout
        Seconds that a site may take for one answer; None for what the file says.
    watch
        Show the state of the sites on a page of this machine: True for any free port, or the port. `url` says where
        it is, once `with` has begun.

    Examples
    --------
    >>> import auqadmm as aq
    >>> with aq.Sites("sites.toml") as sites:  # doctest: +SKIP
    ...     problem = aq.Problem(aq.Logistic(), aq.L2(0.1), aq.SiteData("heart", target="sick"))
    ...     result = aq.solve(problem, engine=sites)
    """

    def __init__(self, settings: str | Path, timeout: float | None = None, watch: bool | int = False) -> None:
        self.settings, self.timeout = settings, timeout
        self.hub: Hub | None = None
        self.board = Board(watch)
        self.on_change: Callable[[Any], object] | None = None
        self.study: Study | None = None
        self.begun: SiteData | None = None
        self.last: SiteData | None = None
        self.method: object = None

    def __enter__(self) -> Sites:
        self.board.open()
        return self

    def __exit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        self.board.failed(error)
        self.leave()
        self.board.close()

    @property
    def url(self) -> str:
        """Where the page of `watch` is; empty where there is none."""
        return self.board.url

    @property
    def callbacks(self) -> tuple[Callable[[Any], object], ...]:
        """What `solve` calls after every iteration."""
        return (self.board.iteration,)

    def solved(self, result: Result) -> None:
        """How a run ended: `solve` says it.

        Parameters
        ----------
        result
            What `solve` returns.
        """
        self.board.solved(result)

    def received(self) -> list[dict[str, Any]]:
        """What has left each site, as counted here when it came in.

        Returns
        -------
        list
            One table per site: its name, messages, numbers, bytes, how many were masked, and the same by what was
            asked for.
        """
        return [] if self.board.ledger is None else self.board.ledger.summary()

    def __deepcopy__(self, memo: object) -> Sites:
        return self  # connections cannot be copied

    def connect(self, data: str) -> Study:
        """A new run with the sites, once all of them are there.

        Parameters
        ----------
        data
            The name of the data set that is asked for.

        Returns
        -------
        Study
            Open until `close`.

        Raises
        ------
        WorkerLost
            A site is absent, or was lost.
        InputError
            A site does not take part; the message says which and why.
        """
        from auqadmm.sites.hub import Hub
        from auqadmm.sites.settings import read_hub

        if self.hub is None:
            settings = read_hub(self.settings)
            self.hub = Hub(settings).__enter__()
            self.board.attach(self.hub)
        names = tuple(self.hub.settings.sites)
        try:
            self.hub.wait(names, on_change=self.on_change)
        except SitesError as absent:
            raise WorkerLost(str(absent)) from None
        link = HubLink(self.hub)
        for name, answer in self.hub.begin(data, names).items():
            if isinstance(answer, str) and answer.startswith(GONE):
                raise WorkerLost(f"Site {name} was lost ({answer}).")
            if isinstance(answer, str):
                raise InputError(f"Site {name} does not take part: {answer}")
        return Study(link, names, self.timeout or self.hub.settings.round, ledger=self.hub.ledger)

    def begin(self, data: SiteData, model: str, method: object, g: Regularizer | None = None) -> tuple[Agreed, object]:
        """Declare a run, and agree on the columns.

        Parameters
        ----------
        data
            What the sites are asked for.
        model
            Its name, as the sites' policies know it.
        method
            As given to `solve`.
        g
            The regularizer.

        Returns
        -------
        agreed, method
            The encoding of columns, and the method: another one where the sites allow sums only.
        """
        self.close()
        study = self.study = self.connect(data.data)
        study.open(data.data)
        method = study.allowed(method, g)
        self.board.begun(data.data, model, str(getattr(method, "name", method)), study.masked, study.terms)
        agreed = study.prepare(study.plan(model, method, data.wanted))
        self.begun, self.last, self.method = data, data, method
        return agreed, method

    def running(self, problem: Problem, method: object) -> object:
        """Declare a run before its first round, if that was not done: `solve` calls this.

        Parameters
        ----------
        problem
            Whose blocks are a `SiteData`.
        method
            As given to `solve`.

        Returns
        -------
        method
            The same, or another where the sites allow sums only.

        Raises
        ------
        InputError
            The blocks are no `SiteData`, or a site refuses.
        """
        data = problem.blocks
        if not isinstance(data, SiteData):
            raise InputError("engine=aq.Sites(…) needs blocks=aq.SiteData(…): rows are not sent to sites.")
        if self.study is not None and self.begun is data:
            self.begun = None  # a run that is repeated is declared anew
            return self.method
        if self.study is not None and self.last is data and problem.posed()["keep"] is not None:
            return self.method  # of rows that are not held out: the plan says so
        method = self.begin(data, type(problem.loss).__name__, method, problem.regularizer)[1]
        self.begun = None
        return method

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> SitesEngine:
        """The sites as an engine; the plan was made before."""
        cpu_only("sites", device)
        if self.study is None:
            raise InputError("The sites have gone: begin the run again.")
        return SitesEngine(SitesPool(self.study), problem, dtype)

    def close(self) -> None:
        """Let the sites go; they wait for another run."""
        if self.study is not None:
            self.study.link.close()
            self.study = None

    def leave(self) -> None:
        """Close, and listen no more."""
        self.close()
        if self.hub is not None:
            self.hub.__exit__()
            self.hub = None
