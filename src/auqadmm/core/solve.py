"""The only loop in the library.

A method is `init(setup, reduce) -> state` and `step(state, reduce) -> state`. The loop owns stopping, certificate,
history, callbacks and interrupts, and nothing else; it knows no method and no engine by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from auqadmm.core.certificate import Certificate, Certifier
from auqadmm.core.history import Clock, History, Row
from auqadmm.core.reduce import Reduce
from auqadmm.core.result import Result
from auqadmm.core.state import Blocks, Setup, State, Status
from auqadmm.core.stopping import Stopping


class Method(Protocol):
    """Anything the loop can run."""

    @property
    def name(self) -> str: ...
    def init(self, setup: Setup, reduce: Reduce) -> State: ...
    def step(self, state: State, reduce: Reduce) -> State: ...


@dataclass(frozen=True)
class Iteration:
    """What a callback sees after each iteration; returning True from it stops the run."""

    row: Row
    state: State
    stopping: Stopping
    method: str


Callback = Callable[[Iteration], Any]


def run(
    method: Method,
    setup: Setup,
    reduce: Reduce,
    stopping: Stopping,
    callbacks: Sequence[Callback] = (),
    evaluate_every: int = 1,
) -> Result:
    """Iterate until a stopping rule speaks."""
    loop = _Loop(method, setup, reduce, stopping, callbacks, evaluate_every)
    try:
        ended = loop.go()
    except KeyboardInterrupt:
        ended = _Ended(Status.interrupted, f"Interrupted after {loop.done} iterations; v is the last complete iterate.")
    return loop.result(ended)


@dataclass(frozen=True)
class _Ended:
    status: Status
    message: str


class _Loop:
    """The moving parts of one run: a state, rows, a clock. `go` replaces them once per complete iteration."""

    def __init__(
        self,
        method: Method,
        setup: Setup,
        reduce: Reduce,
        stopping: Stopping,
        callbacks: Sequence[Callback],
        evaluate_every: int,
    ) -> None:
        # a certificate in every iteration: let its sums travel with the method's own
        setup = replace(setup, scoring=stopping.rule == "certificate")
        self.method, self.setup, self.reduce = method, setup, reduce
        self.stopping, self.callbacks, self.evaluate_every = stopping, tuple(callbacks), evaluate_every
        self.clock = Clock()
        self.state: State | None = None
        self.rows: list[Row] = []
        zero = torch.zeros(setup.features, setup.columns, dtype=torch.float64, device=setup.device)
        self.start = zero if setup.warm is None else setup.warm.v.to(zero)
        self.certifier = Certifier(reduce, setup.regularizer, zero, None, setup.precision)

    @property
    def done(self) -> int:
        return len(self.rows)

    def go(self) -> _Ended:
        with self.clock:
            self.state = self.method.init(self.setup, self.reduce)
        while True:
            if (broken := self._broken(self.state)) is not None:
                return broken
            if self.done >= self.stopping.max_iter:
                return self._out_of_budget(Status.max_iter, f"limit of {self.stopping.max_iter} iterations")
            limit = self.stopping.time_limit
            if limit is not None and self.clock.wall >= limit:
                return self._out_of_budget(Status.time_limit, f"time limit of {limit:g} s")
            with self.clock:
                state = self.method.step(self.state, self.reduce)
            if not bool(state.shared.v.isfinite().all()):
                return _Ended(
                    Status.diverged,
                    f"The v-step of iteration {self.done + 1} gave NaN or infinity; v is the iterate before it. "
                    "Rescale the features or choose a larger regularisation.",
                )
            certificate, converged = self._judge(state)
            # consensus methods notice by their local solves; a gradient method has no other sign
            if state.shared.residuals is None and certificate is not None and not math.isfinite(certificate.kkt):
                return _Ended(
                    Status.diverged,
                    f"The loss or its gradient is not finite at the v of iteration {self.done + 1}; v is the iterate "
                    "before it. Rescale the features or the targets.",
                )
            row = self._row(state, certificate)
            self.state = state
            self.rows.append(row)
            event = Iteration(row, state, self.stopping, self.method.name)
            wishes = [bool(callback(event)) for callback in self.callbacks]
            if converged:
                return self._converged(certificate)
            if any(wishes):
                return _Ended(Status.interrupted, f"A callback stopped the run after {self.done} iterations.")

    # ------------------------------------------------------------------ after each iteration
    def _judge(self, state: State) -> tuple[Certificate | None, bool]:
        """Score the iterate off the clock; when a decision hangs on the certificate, its round counts."""
        # a method without residuals (a gradient method) has nothing but the certificate to stop by
        shared = state.shared
        rule = self.stopping.rule if shared.residuals is not None else "certificate"
        settled = self.stopping.residuals_pass(shared.residuals)
        decides = rule == "certificate" or (rule == "both" and settled)
        due = self.evaluate_every > 0 and shared.iteration % self.evaluate_every == 0
        certificate = None
        if decides or due:
            certificate = self.certifier.certify(
                state.blocks, shared.v, gap=decides, counted=decides, known=shared.scored
            )
        if shared.failed_blocks:  # an iterate built on a failed local solve is never called converged
            return certificate, False
        if rule == "residuals":
            return certificate, settled
        passed = decides and certificate is not None and certificate.passes(self.stopping.certificate_tol)
        return certificate, passed

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
        )

    def _broken(self, state: State) -> _Ended | None:
        """NaN or infinity in a block's state: name the block and the step."""
        if state.shared.not_finite == 0:
            return None
        codes = self.reduce.gather(_health, state.blocks)
        j = int(codes.argmax())  # the local solve may overflow although all it is made of is finite: code 0
        step = {0: "local solve (u-step)", 1: "local solve (u-step)", 2: "weights", 3: "multiplier"}[int(codes[j])]
        return _Ended(
            Status.diverged,
            f"The {step} of {self.reduce.engine.names[j]} gave NaN or infinity in iteration {self.done + 1}; "
            "v is the iterate before it. Rescale that block's features or lower the penalty.",
        )

    # ------------------------------------------------------------------ the end
    def _converged(self, certificate: Certificate | None) -> _Ended:
        rule = {"both": "residuals and certificate", "residuals": "residuals", "certificate": "certificate"}
        how = "" if certificate is None else f" ({certificate.evidence(self.stopping.certificate_tol)})"
        return _Ended(
            Status.converged,
            f"Converged after {_count(self.done)}: {rule[self.stopping.rule]} within tolerance{how}.",
        )

    def _out_of_budget(self, status: Status, what: str) -> _Ended:
        if not self.rows:
            return _Ended(status, f"Stopped at the {what} before the first iteration was complete.")
        row = self.rows[-1]
        parts = []
        if row.primal_residual is not None:
            parts.append(f"primal residual {row.primal_residual:.1e} (tolerance {row.eps_primal:.1e})")
            parts.append(f"dual residual {row.dual_residual:.1e} (tolerance {row.eps_dual:.1e})")
        if row.kkt is not None:
            parts.append(f"KKT residual {row.kkt:.1e} (tolerance {self.stopping.certificate_tol:.1e})")
        advice = "raise the limit, warm-start from this result or try another method"
        return _Ended(status, f"Stopped at the {what}: {', '.join(parts)}; {advice}.{self._failures()}")

    def _failures(self) -> str:
        failed = [name for row in self.rows for name in row.failed_blocks]
        if not failed:
            return ""
        worst = max(set(failed), key=failed.count)
        return f" The local solve of {worst} missed its tolerance in {failed.count(worst)} iterations."

    def result(self, ended: _Ended) -> Result:
        state = self.state
        v: Tensor = self.start if state is None else state.shared.v
        blocks = None if state is None else state.blocks
        complete = state is not None and state.shared.not_finite == 0
        return Result(
            v=v,
            status=ended.status,
            message=ended.message,
            n_iter=self.done,
            history=History(tuple(self.rows)),
            certificate=self.certifier.certify(blocks, v, gap=True),
            method=self.method.name,
            lam=None if blocks is None else self.reduce.gather(_lam, blocks),
            weights=blocks.W if complete and blocks is not None else None,
        )


def _count(n: int) -> str:
    return f"{n} iteration" if n == 1 else f"{n} iterations"


def _lam(shard: Any, blocks: Blocks) -> Tensor:
    return blocks.lam


def _health(shard: Any, blocks: Blocks) -> Tensor:
    """Per block: 0 healthy, 1 local solve, 2 weights, 3 multiplier not finite (B,)."""
    grad = shard.linearize(blocks.u).grad
    bad = [~x.isfinite().flatten(1).all(1) for x in (blocks.u + grad, blocks.W.diagonal(), blocks.lam)]
    # weights spoil the local solve, and so does a spoiled multiplier: blame the cause
    code = bad[0] * 1
    code = torch.where(bad[2], torch.full_like(code, 3), code)
    return torch.where(bad[1], torch.full_like(code, 2), code)
