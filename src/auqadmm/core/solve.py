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

import torch
from torch import Tensor

from auqadmm.checkpoint.settings import RunCheckpoints, Saved
from auqadmm.core.certificate import Certificate
from auqadmm.core.ending import (
    OVER,
    Ending,
    count,
    ending_by_budget,
    ending_by_certificate,
    ending_by_residuals,
    ending_undecided,
    final_message,
    lost_worker_result,
    not_finite,
    with_reason,
)
from auqadmm.core.history import Clock, History, Row
from auqadmm.core.processes import StopRequests
from auqadmm.core.reduce import Reduce, Sums, Traffic, WorkerLost, score
from auqadmm.core.result import Result
from auqadmm.core.state import Blocks, Setup, State, Status
from auqadmm.core.stopping import Stopping
from auqadmm.diagnosis.evidence import collect
from auqadmm.verdict import Judge
from auqadmm.verdict.monitor import Monitor

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.metrics.weights import Weights


class Method(Protocol):
    """Anything the loop can run."""

    @property
    def name(self) -> str: ...
    def init(self, setup: Setup, reduce: Reduce) -> State: ...
    def step(self, state: State, reduce: Reduce) -> State: ...


def block_view(method: Method, reduce: Reduce) -> Reduce:
    """What the state of a method's blocks is asked with: a method may keep data of its own beside a shard."""
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
    """Iterate until a stopping rule speaks; with a `keeper` from where its folder left off, saving on the way."""
    loop = _Loop(method, setup, reduce, stopping, callbacks, evaluate_every, keeper, clock)
    if keeper is not None and not reduce.several:  # else their engine listens
        loop.asked = StopRequests(signal.SIGTERM)
    try:
        ended = loop.ended()
        if early := ended.status not in OVER:  # before anything else is asked of the workers
            loop.save_end(ended)
            loop.asked.restore()
        ended = loop.certified(ended)
        if not early:  # with the certificate
            loop.save_end(ended)
            loop.asked.restore()
        return loop.result(ended, loop.saved_where(ended))
    except WorkerLost as lost:
        loop.leave(lost)
        raise
    finally:
        loop.asked.restore()
        if keeper is not None:
            keeper.close()


class _Loop:
    """The moving parts of one run. `at` is replaced once per complete iteration: state, rows, counters, all at once."""

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
        # a verdict may be asked for after every iteration: let what tells when travel with the method's own sums
        setup = replace(setup, scoring=stopping.rule == "certificate" and stopping.certificate_tol > 0)
        self.method, self.setup, self.reduce = method, setup, reduce
        self.near = block_view(method, reduce)
        self.stopping, self.callbacks, self.evaluate_every = stopping, tuple(callbacks), evaluate_every
        self.keeper, self.asked, self.clock = keeper, StopRequests(), clock or Clock()
        self.at: Saved | None = None
        self.rows: list[Row] = []
        zero = torch.zeros(setup.features, setup.columns, dtype=torch.float64, device=setup.device)
        self.start = zero if setup.warm is None else setup.warm.v.to(zero)
        self.watch = Monitor(Judge(reduce, setup), stopping.certificate_tol)

    @property
    def done(self) -> int:
        return len(self.rows)

    def ended(self) -> Ending:
        """How the run ends; Ctrl-C is one way."""
        try:
            return self.go()
        except KeyboardInterrupt:
            del self.rows[0 if self.at is None else self.at.done :]
            message = f"Interrupted after {self.done} iterations; v is the last complete iterate."
            return Ending(Status.interrupted, message)

    def go(self) -> Ending:
        if (finished := self._begin()) is not None:
            return finished
        while True:
            assert self.at is not None
            state = self.at.state
            if (broken := not_finite(state, self.near, self.done + 1)) is not None:
                return broken
            if who := self.asked.signal:
                message = f"Stopped by {who} after {count(self.done)}; v is the last complete iterate."
                return Ending(Status.interrupted, message)
            if self.done >= self.stopping.max_iter:
                what = f"limit of {self.stopping.max_iter} iterations"
                return ending_by_budget(self.rows, Status.max_iter, what)
            limit = self.stopping.time_limit
            if limit is not None and self.reduce.agreed(self.clock.wall >= limit):
                return ending_by_budget(self.rows, Status.time_limit, f"time limit of {limit:g} s")
            with self.clock:
                state = self.method.step(state, self.reduce)
            slowest = self.reduce.slowest()
            if not bool(state.shared.v.isfinite().all()):
                return Ending(
                    Status.diverged,
                    f"The v-step of iteration {self.done + 1} gave NaN or infinity; v is the iterate before it. "
                    "Rescale the features or choose a larger regularisation.",
                )
            certificate, arrived = self._judge(state)
            # consensus methods notice by their local solves; a gradient method has no other sign
            if state.shared.residuals is None and certificate is not None and not math.isfinite(certificate.kkt):
                return Ending(
                    Status.diverged,
                    f"The loss or its gradient is not finite at the v of iteration {self.done + 1}; v is the iterate "
                    "before it. Rescale the features or the targets.",
                )
            row = self._row(state, certificate)
            self.rows.append(row)
            self._mark(state)
            names = self.reduce.engine.names
            wishes = self._heard(Iteration(row, state, self.stopping, self._name(state), names, slowest))
            if arrived:
                return arrived
            if any(wishes):
                return Ending(Status.interrupted, f"A callback stopped the run after {self.done} iterations.")
            if self.keeper is not None and self.keeper.due(self.done):
                self._save()

    def _heard(self, event: Iteration) -> list[bool]:
        """What the callbacks wish. One that fails ends the run, but not before its last iterate is saved."""
        try:
            return [bool(callback(event)) for callback in self.callbacks]
        except WorkerLost:  # nothing can be summed any more, and so nothing saved
            raise
        except Exception:
            self._save()
            raise

    # ------------------------------------------------------------------ checkpoints
    def _begin(self) -> Ending | None:
        """The first state, or the last one of a run that goes on; how it ended, where nothing is left to do."""
        saved = None if self.keeper is None else self.keeper.begin(self.setup)
        self.reduce.traffic = Traffic()  # placing is over
        with self.clock:
            self._look_around()
        if saved is None:
            with self.clock:
                state = self.method.init(self.setup, self.reduce)
            self._mark(state)
            self._save()
            return None
        shared = replace(saved.state.shared, setup=self.setup)
        self.at, self.rows = replace(saved, state=replace(saved.state, shared=shared)), list(saved.rows)
        self.watch.resume(saved.gate)
        self.reduce.traffic, self.clock.seconds = replace(saved.traffic), saved.seconds
        # other tolerances: what had converged by the old ones goes on
        if saved.ended is None or (saved.ended[0] in OVER and saved.stop != self.stopping.tolerances):
            return None
        final = saved.ended[0] in (*OVER, Status.diverged)
        return Ending(Status(saved.ended[0]), saved.ended[1], saved.certificate) if final else None

    def _look_around(self) -> None:
        """Round 0, where a verdict will be asked for; where certificates only fill a plot, it is not counted either."""
        if self.setup.scoring:
            self.watch.judge.begin()
            self.setup = replace(self.setup, seen=self.watch.judge.columns)
        elif self.evaluate_every > 0:
            before = replace(self.reduce.traffic)
            self.watch.judge.begin()
            self.reduce.traffic = replace(before, reductions=self.reduce.traffic.reductions)

    def _mark(self, state: State) -> None:
        counters = (replace(self.reduce.traffic), self.clock.seconds)
        stop = self.stopping.tolerances
        self.at = Saved(state, self.rows, self.done, *counters, ended=None, stop=stop, gate=self.watch.gate)

    def _save(self, ended: Ending | None = None) -> None:
        if self.keeper is not None and self.at is not None:
            saved = self.at
            if ended is not None:
                saved = replace(saved, ended=(str(ended.status), ended.message))
            if ended is not None and ended.status in OVER:  # nothing will be asked again
                saved = replace(saved, certificate=ended.certificate, traffic=replace(self.reduce.traffic))
            self.keeper.save(saved, self.setup)

    def save_end(self, ended: Ending) -> None:
        """Save the end of the run, unless it is what the run was resumed from."""
        if self.at is None or self.at.ended == (str(ended.status), ended.message):
            return
        try:
            self._save(ended)
        except KeyboardInterrupt:  # a second one: what was saved before stays
            return

    def saved_where(self, ended: Ending) -> str:
        """What the message says of checkpoints."""
        if self.keeper is None:
            return ""
        unfinished = (Status.max_iter, Status.time_limit, Status.interrupted)
        if ended.status not in unfinished or self.keeper.last is None:
            return self.keeper.warning
        return f" The run is saved in {self.keeper.folder}, from where a later call goes on.{self.keeper.warning}"

    def leave(self, lost: WorkerLost) -> None:
        """A worker is lost: hand over the last complete iterate, and say where the run is saved."""
        lost.saved = None if self.keeper is None else self.keeper.iteration
        more = "" if self.keeper is None else self.keeper.way_back
        lost.left = None if self.at is None else lost_worker_result(self.at, self._name(self.at.state), lost, more)

    # ------------------------------------------------------------------ after each iteration
    def _judge(self, state: State) -> tuple[Certificate | None, Ending | None]:
        """What is known of the iterate, and whether the run ends here."""
        shared, tol = state.shared, self.stopping.certificate_tol
        by_verdict = self.stopping.rule == "certificate" or shared.residuals is None
        sums = shared.scored
        if sums is None and self.evaluate_every > 0 and shared.iteration % self.evaluate_every == 0:
            sums = self.reduce.free(score, state.blocks, shared.v)  # asked for, off the clock and uncounted
        if sums is None and by_verdict and tol > 0:
            with self.clock:
                sums = self.watch.asked(shared.v, first=not self.done)
        found = None if sums is None else self.watch.judge.cheap(shared.v, sums)
        if not by_verdict:
            assert shared.residuals is not None
            return found, ending_by_residuals(self.done + 1) if self.stopping.residuals_pass(shared.residuals) else None
        if found is None or sums is None or not tol > 0:
            return found, None
        with self.clock:
            found = self.watch.verdict(shared, sums, found)
        if found.passes(tol) or found.evidence == "rounding":
            return found, ending_by_certificate(self.done + 1, found)
        last = self.watch.ends(found)
        return found, None if last is None else ending_undecided(self.done + 1, last)

    def _row(self, state: State, certificate: Certificate | None) -> Row:
        shared, cost, r = state.shared, state.shared.cost, state.shared.residuals
        eps = self.stopping.thresholds(r) if r is not None else (None, None)
        names = self.reduce.engine.names
        return Row(
            iteration=shared.iteration,
            objective=None if certificate is None else certificate.objective,
            primal_residual=None if r is None else r.primal,
            dual_residual=None if r is None else r.dual,
            eps_primal=eps[0],
            eps_dual=eps[1],
            kkt=None if certificate is None else certificate.kkt,
            seconds=self.clock.seconds,
            rounds=cost.rounds,
            bytes=cost.up + cost.down,
            bytes_up=cost.up,
            bytes_down=cost.down,
            hvps=cost.hvps,
            failed_blocks=tuple(names[j] for j in shared.failed_blocks),
            rounds_verdict=self.reduce.traffic.verdict,
            reductions=self.reduce.traffic.reductions,
            relative=None if certificate is None else certificate.relative_gap,
            expected=self.watch.expected,
        )

    # ------------------------------------------------------------------ the end
    def certified(self, ended: Ending) -> Ending:
        """With the last certificate, and in words how far v is from the optimum and why it is not nearer."""
        state = None if self.at is None else self.at.state
        v: Tensor = self.start if state is None else state.shared.v
        found = ended.certificate
        if found is None:
            whole = ended.status not in (Status.interrupted, Status.diverged)
            found = self.watch.last(None if state is None else state.shared, v, whole)
        evidence = None
        arrived = ended.status in (Status.converged, Status.rounding)
        if state is not None and not arrived:
            method, columns = getattr(self.method, "method", self.method), self.watch.judge.columns
            evidence = collect(self.reduce, self.setup, self.stopping, method, state, columns, self.near)
            found = with_reason(found, evidence)
        return replace(ended, certificate=found, evidence=evidence)

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

    def result(self, ended: Ending, more: str = "") -> Result:
        state = None if self.at is None else self.at.state
        v: Tensor = self.start if state is None else state.shared.v
        blocks = None if state is None else state.blocks
        complete = state is not None and state.shared.not_finite == 0
        assert ended.certificate is not None
        lam = None if blocks is None else self.near.gather(_lam, blocks)
        result = Result(
            v=v,
            status=ended.status,
            message=ended.message,
            n_iter=self.done,
            history=History(tuple(self.rows)).counted(self.reduce.traffic),
            certificate=ended.certificate,
            method=self._name(state),
            choice=self._choice(state),
            lam=lam,
            weights=self.reduce.place(_weights, blocks, None) if complete and blocks is not None else None,
            evidence=ended.evidence,
        )
        return replace(result, message=final_message(result, self.stopping) + more)


def _lam(shard: Shard, blocks: Blocks) -> Tensor:
    return shard.slopes(blocks.lam)


def _weights(shard: Shard, blocks: Blocks, shared: None) -> tuple[Weights, Sums]:
    return blocks.W, {}
