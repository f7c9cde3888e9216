"""When AUQ-LR renews its weights (S12; the method: lowrank.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from auqadmm.methods.auq_lr.server import ServerState


@dataclass(frozen=True)
class Schedule:
    """`refresh` are the iterations whose local solves may use renewed weights."""

    refresh: tuple[int, ...]

    def told(self, server: ServerState, k: int) -> ServerState:
        """What the blocks are told for iteration k + 1. Whether weights are stale was found out one round earlier."""
        heard, told = server.heard, server.directive
        assert heard is not None
        renew = heard.contest_won or ((k + 1) in self.refresh and heard.stale)
        directive = replace(
            told,
            posterior=told.contest if heard.contest_won and told.contest is not None else told.posterior,
            refresh=renew,
            look_ahead=(k + 2) in self.refresh,
            forget=renew,  # another map: what was learned of the old one does not count
            contest=None,
        )
        anderson = server.anderson.cleared() if renew else server.anderson
        return replace(server, directive=directive, anderson=anderson)
