"""The coordinator's side: sites as workers of a driver engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.core.reduce import MapFn, WorkerLost
from auqadmm.engines.driver import BROUGHT, DriverEngine, cpu_only
from auqadmm.errors import InputError
from auqadmm.files.preprocessing import Agreed
from auqadmm.problem import Problem
from auqadmm.problem.regularizers import Regularizer
from auqadmm.sites.answers import added, understood
from auqadmm.sites.board import Board
from auqadmm.sites.refusals import SitesError
from auqadmm.sites.rules import asked_of
from auqadmm.sites.study import HubLink, SiteData, Study

if TYPE_CHECKING:
    from auqadmm.core.result import Result
    from auqadmm.sites.hub import Hub

GONE = ("was started anew", "left", "no sign of life", "no answer within")  # how a hub says that a site is lost
OPERATIONS = ("sum", "minmax", "concat", "gather", "peek")  # requests that name one


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
