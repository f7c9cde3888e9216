"""The only loop in the library.

A method is `init(setup, reduce) -> state` and `step(state, reduce) -> state`. The loop owns stopping, certificate,
history, callbacks, interrupts and checkpoints, and nothing else; it knows no method and no engine by name.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from auqadmm.checkpoint.settings import RunCheckpoints
from auqadmm.core.history import Clock, History, Row
from auqadmm.core.processes import StopRequests
from auqadmm.core.record import (
    OVER,
    Ending,
    RunRecord,
    ending_by_budget,
    ending_by_callback,
    ending_by_certificate,
    ending_by_interrupt,
    ending_by_loss,
    ending_by_residuals,
    ending_by_signal,
    ending_by_v,
    ending_undecided,
    final_message,
    lost_worker_result,
    not_finite,
    with_reason,
)
from auqadmm.core.reduce import Reduce, Sums, Traffic, WorkerLost, score
from auqadmm.core.result import Result
from auqadmm.core.state import Blocks, Setup, State, Status
from auqadmm.core.stopping import Certificate, Stopping
from auqadmm.diagnosis.evidence import collect
from auqadmm.verdict import Judge
from auqadmm.verdict.monitor import Monitor

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.metrics.weights import Weights


class Method(Protocol):
    """Anything the loop can run: a name, the state before the first iteration, and one iteration."""

    @property
    def name(self) -> str: ...
    def init(self, setup: Setup, reduce: Reduce) -> State:
        """The state before the first iteration.

        Parameters
        ----------
        setup
            What stays fixed during the run.
        reduce
            For maps over blocks.

        Returns
        -------
        State
            With v at its start.
        """
        ...

    def step(self, state: State, reduce: Reduce) -> State:
        """One iteration.

        Parameters
        ----------
        state
            What `init` or the step before returned; it is not changed.
        reduce
            For maps over blocks.

        Returns
        -------
        State
            A new one, with `shared.iteration` one higher.
        """
        ...


def block_view(method: Method, reduce: Reduce) -> Reduce:
    """The shard as the method's block functions take it: a method may add data of its own."""
    view = getattr(method, "view", None)
    return reduce if view is None else view(reduce)


@dataclass(frozen=True)
class Iteration:
    """What a callback sees after each iteration; returning True from it stops the run.

    Attributes
    ----------
    row
        The history's row of this iteration.
    state
        The whole state of the method: `state.v` is the model.
    stopping
        The tolerances and limits of the run.
    method
        The name of the method that runs.
    names
        Of all blocks.
    slowest
        The worker that computed longest and its seconds, where the engine knows.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> def third(event):
    ...     return event.row.iteration == 3
    >>> result = aq.solve(problem, "c-admm", callbacks=[third])
    >>> result.n_iter, result.status == "interrupted"
    (3, True)
    """

    row: Row
    state: State
    stopping: Stopping
    method: str
    names: tuple[str, ...] = ()
    slowest: tuple[str, float] | None = None


Callback = Callable[[Iteration], object]


def run(
    method: Method,
    setup: Setup,
    reduce: Reduce,
    stopping: Stopping,
    callbacks: Sequence[Callback] = (),
    evaluate_every: int = 0,
    keeper: RunCheckpoints | None = None,
    clock: Clock | None = None,
) -> Result:
    """Iterate until a stopping rule applies; with a `keeper`, resume from its folder and save checkpoints."""
    loop = _Loop(method, setup, reduce, stopping, callbacks, evaluate_every, keeper, clock)
    if keeper is not None and not reduce.several:  # else the engine handles signals
        loop.asked = StopRequests(signal.SIGTERM)
    try:
        ended = loop.ended()
        if early := ended.status not in OVER:  # before any further reduction
            loop.save_end(ended)
        ended = loop.certified(ended)
        if not early:  # with the certificate
            loop.save_end(ended)
        return loop.result(ended)
    except WorkerLost as lost:
        loop.leave(lost)
        raise
    finally:
        loop.asked.restore()
        if keeper is not None:
            keeper.close()


class _Loop:
    """The mutable state of one run; the outcome of every complete iteration is in `record`."""

    def __init__(
        self,
        method: Method,
        setup: Setup,
        reduce: Reduce,
        stopping: Stopping,
        callbacks: Sequence[Callback],
        evaluate_every: int,
        keeper: RunCheckpoints | None = None,
        clock: Clock | None = None,
    ) -> None:
        # a verdict may follow any iteration: send the sums that decide when together with the method's own
        setup = replace(setup, scoring=stopping.rule == "certificate" and stopping.certificate_tol > 0)
        self.method, self.setup, self.reduce = method, setup, reduce
        self.near = block_view(method, reduce)
        self.stopping, self.callbacks, self.evaluate_every = stopping, tuple(callbacks), evaluate_every
        self.keeper, self.asked, self.clock = keeper, StopRequests(), clock or Clock()
        self.start = setup.first_v()
        self.monitor = Monitor(Judge(reduce, setup), stopping.certificate_tol)
        self.record = RunRecord(reduce, stopping, self.clock, self.monitor, keeper)

    def ended(self) -> Ending:
        """How the run ends; Ctrl-C is one way."""
        try:
            return self.go()
        except KeyboardInterrupt:
            self.record.rewind()
            return ending_by_interrupt(self.record.done)

    def go(self) -> Ending:
        if (finished := self._begin()) is not None:
            return finished
        while (stopped := self._stopped()) is None:
            with self.clock:
                state = self.method.step(self._state, self.reduce)
            slowest = self.reduce.slowest()
            if not bool(state.shared.v.isfinite().all()):
                return ending_by_v(self.record.done + 1)
            certificate, arrived = self._judge(state)
            # consensus methods see divergence in their local solves; gradient methods have no other indicator
            if state.shared.residuals is None and certificate is not None and not math.isfinite(certificate.kkt):
                return ending_by_loss(self.record.done + 1)
            names = self.reduce.engine.names
            row = self.record.row(state.shared, certificate, names)
            self.record.mark(state, row)
            wishes = self._call_back(Iteration(row, state, self.stopping, self._name(state), names, slowest))
            if arrived:
                return arrived
            if any(wishes):
                return ending_by_callback(self.record.done)
            self.record.save_if_due(self.setup)
        return stopped

    @property
    def _state(self) -> State:
        assert self.record.state is not None
        return self.record.state

    # ------------------------------------------------------------------ before the first iteration
    def _begin(self) -> Ending | None:
        """The initial or resumed state; how the run ended, if it needs no further iteration."""
        saved = None if self.keeper is None else self.keeper.begin(self.setup)
        self.reduce.traffic = Traffic()  # data placement is not counted
        with self.clock:
            self._round_zero()
        if saved is not None:
            return self.record.resume(saved, self.setup)
        with self.clock:
            state = self.method.init(self.setup, self.reduce)
        self.record.mark(state)
        self.record.save(self.setup)
        return None

    def _round_zero(self) -> None:
        """Moments of the columns, if a verdict will need them; if certificates are only plotted, they are not
        counted."""
        if self.setup.scoring:
            self.monitor.judge.begin()
            self.setup = replace(self.setup, seen=self.monitor.judge.columns)
        elif self.evaluate_every > 0:
            before = replace(self.reduce.traffic)
            self.monitor.judge.begin()
            self.reduce.traffic = replace(before, reductions=self.reduce.traffic.reductions)

    # ------------------------------------------------------------------ before each iteration
    def _stopped(self) -> Ending | None:
        """Why there is no further iteration: NaN or infinity, a signal, a budget; None: there is one."""
        done, limit = self.record.done, self.stopping.time_limit
        if (broken := not_finite(self._state, self.near, done + 1)) is not None:
            return broken
        if self.asked.signal:
            return ending_by_signal(self.asked.signal, done)
        if done >= self.stopping.max_iter:
            return ending_by_budget(self.record.rows, Status.max_iter, f"limit of {self.stopping.max_iter} iterations")
        if limit is not None and self.reduce.agreed(self.clock.wall >= limit):
            return ending_by_budget(self.record.rows, Status.time_limit, f"time limit of {limit:g} s")
        return None

    # ------------------------------------------------------------------ after each iteration
    def _judge(self, state: State) -> tuple[Certificate | None, Ending | None]:
        """Evaluate the iterate, and decide whether the run ends."""
        shared, tol = state.shared, self.stopping.certificate_tol
        by_verdict = self.stopping.rule == "certificate" or shared.residuals is None
        sums = shared.scored
        if sums is None and self.evaluate_every > 0 and shared.iteration % self.evaluate_every == 0:
            sums = self.reduce.free(score, state.blocks, shared.v)  # requested by the user: neither timed nor counted
        if sums is None and by_verdict and tol > 0:
            with self.clock:
                sums = self.monitor.asked(shared.v, first=not self.record.done)
        certificate = None if sums is None else self.monitor.judge.cheap(shared.v, sums)
        if not by_verdict:
            assert shared.residuals is not None
            passed = self.stopping.residuals_pass(shared.residuals)
            return certificate, ending_by_residuals(self.record.done + 1) if passed else None
        if certificate is None or sums is None or not tol > 0:
            return certificate, None
        with self.clock:
            certificate = self.monitor.verdict(shared, sums, certificate)
        if certificate.passes(tol) or certificate.evidence == "rounding":
            return certificate, ending_by_certificate(self.record.done + 1, certificate)
        last = self.monitor.ends(certificate)
        return certificate, None if last is None else ending_undecided(self.record.done + 1, last)

    def _call_back(self, event: Iteration) -> list[bool]:
        """What each callback answers: stop? One that fails ends the run, but not before its last iterate is saved."""
        try:
            return [bool(callback(event)) for callback in self.callbacks]
        except WorkerLost:  # no reduction is possible any more, and so no checkpoint
            raise
        except Exception:
            self.record.save(self.setup)
            raise

    # ------------------------------------------------------------------ the end
    def save_end(self, ended: Ending) -> None:
        self.record.save_end(self.setup, ended)
        self.asked.restore()

    def leave(self, lost: WorkerLost) -> None:
        """A worker is lost: return the last complete iterate, and name the checkpoint."""
        at = self.record.at
        lost.saved = None if self.keeper is None else self.keeper.iteration
        more = "" if self.keeper is None else self.keeper.how_to_resume
        lost.left = None if at is None else lost_worker_result(at, self._name(at.state), lost, more)

    def certified(self, ended: Ending) -> Ending:
        """With the last certificate, and in words how far v is from the optimum and why not closer."""
        state, certificate = self.record.state, ended.certificate
        v = self.start if state is None else state.shared.v
        if certificate is None:
            whole = ended.status not in (Status.interrupted, Status.diverged)
            certificate = self.monitor.last(None if state is None else state.shared, v, whole)
        evidence = None
        arrived = ended.status in (Status.converged, Status.rounding)
        if state is not None and not arrived:
            method, columns = getattr(self.method, "method", self.method), self.monitor.judge.columns
            evidence = collect(self.reduce, self.setup, self.stopping, method, state, columns, self.near)
            certificate = with_reason(certificate, evidence)
        return replace(ended, certificate=certificate, evidence=evidence)

    def _choice(self, state: State | None) -> Any:
        """What a method that chooses among others did, with what it took."""
        chosen = getattr(self.method, "chosen", None)
        if chosen is None or state is None:
            return None
        return replace(chosen(state), rounds=self.reduce.traffic.rounds, numbers=self.reduce.traffic.up // 8)

    def _name(self, state: State | None) -> str:
        """Of the method that runs."""
        named = getattr(self.method, "named", None)
        return self.method.name if named is None or state is None else named(state)

    def result(self, ended: Ending) -> Result:
        state, record = self.record.state, self.record
        blocks = None if state is None else state.blocks
        complete = state is not None and state.shared.not_finite == 0
        blocks = blocks if self.reduce.collects else None
        assert ended.certificate is not None
        lam = None if blocks is None else self.near.gather(_lam, blocks)
        result = Result(
            v=self.start if state is None else state.shared.v,
            status=ended.status,
            message=ended.message,
            n_iter=record.done,
            history=History(tuple(record.rows)).counted(self.reduce.traffic),
            certificate=ended.certificate,
            method=self._name(state),
            choice=self._choice(state),
            lam=lam,
            weights=self.reduce.place(_weights, blocks, None) if complete and blocks is not None else None,
            evidence=ended.evidence,
            moments=self.monitor.judge.columns,
        )
        return replace(result, message=final_message(result, self.stopping) + record.saved_where(ended))


def _lam(shard: Shard, blocks: Blocks) -> Tensor:
    return shard.slopes(blocks.lam)


def _weights(shard: Shard, blocks: Blocks, shared: None) -> tuple[Weights, Sums]:
    return blocks.W, {}
