"""The run so far: its state, rows and counters after the last complete iteration, and their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from auqadmm.checkpoint.settings import RunCheckpoints, Saved
from auqadmm.core.certificate import Certificate
from auqadmm.core.ending import OVER, Ending
from auqadmm.core.history import Clock, Row
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State, Status
from auqadmm.core.stopping import Stopping
from auqadmm.verdict.monitor import Monitor


class RunRecord:
    """What is kept of a run. `at` is replaced once per complete iteration: state, rows, counters, all at once."""

    def __init__(
        self, reduce: Reduce, stopping: Stopping, clock: Clock, monitor: Monitor, keeper: RunCheckpoints | None
    ) -> None:
        self.reduce, self.stopping, self.clock, self.monitor, self.keeper = reduce, stopping, clock, monitor, keeper
        self.at: Saved | None = None
        self.rows: list[Row] = []

    @property
    def done(self) -> int:
        return len(self.rows)

    @property
    def state(self) -> State | None:
        """After the last complete iteration."""
        return None if self.at is None else self.at.state

    def mark(self, state: State, row: Row | None = None) -> None:
        """An iteration is complete."""
        if row is not None:
            self.rows.append(row)
        counters = (replace(self.reduce.traffic), self.clock.seconds)
        stop = self.stopping.tolerances
        self.at = Saved(state, self.rows, self.done, *counters, ended=None, stop=stop, gate=self.monitor.gate)

    def row(self, shared: Consensus, certificate: Certificate | None, names: Sequence[str]) -> Row:
        """What is known of an iterate; `names` of all blocks."""
        cost, r, traffic = shared.cost, shared.residuals, self.reduce.traffic
        eps = self.stopping.thresholds(r) if r is not None else (None, None)
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
            rounds_verdict=traffic.verdict,
            reductions=traffic.reductions,
            relative=None if certificate is None else certificate.relative_gap,
            expected=self.monitor.expected,
        )

    def rewind(self) -> None:
        """Discard the partial results of an interrupted iteration."""
        del self.rows[0 if self.at is None else self.at.done :]

    # ------------------------------------------------------------------ checkpoints
    def resume(self, saved: Saved, setup: Setup) -> Ending | None:
        """Go on from a checkpoint; how the run ended, if it needs no further iteration."""
        shared = replace(saved.state.shared, setup=setup)
        self.at, self.rows = replace(saved, state=replace(saved.state, shared=shared)), list(saved.rows)
        self.monitor.resume(saved.gate)
        self.reduce.traffic, self.clock.seconds = replace(saved.traffic), saved.seconds
        # new tolerances: a run that converged by the old ones continues
        if saved.ended is None or (saved.ended[0] in OVER and saved.stop != self.stopping.tolerances):
            return None
        final = saved.ended[0] in (*OVER, Status.diverged)
        return Ending(Status(saved.ended[0]), saved.ended[1], saved.certificate) if final else None

    def save_if_due(self, setup: Setup) -> None:
        if self.keeper is not None and self.keeper.due(self.done):
            self.save(setup)

    def save(self, setup: Setup, ended: Ending | None = None) -> None:
        if self.keeper is not None and self.at is not None:
            saved = self.at
            if ended is not None:
                saved = replace(saved, ended=(str(ended.status), ended.message))
            if ended is not None and ended.status in OVER:  # no further round needed
                saved = replace(saved, certificate=ended.certificate, traffic=replace(self.reduce.traffic))
            self.keeper.save(saved, setup)

    def save_end(self, setup: Setup, ended: Ending) -> None:
        """Save the end of the run, unless it is what the run was resumed from."""
        if self.at is None or self.at.ended == (str(ended.status), ended.message):
            return
        try:
            self.save(setup, ended)
        except KeyboardInterrupt:  # a second Ctrl-C: the previous checkpoint stays
            return

    def saved_where(self, ended: Ending) -> str:
        """What the message says about checkpoints."""
        if self.keeper is None:
            return ""
        unfinished = (Status.max_iter, Status.time_limit, Status.interrupted)
        if ended.status not in unfinished or self.keeper.last is None:
            return self.keeper.warning
        return f" The run is saved in {self.keeper.folder}, from where a later call goes on.{self.keeper.warning}"
