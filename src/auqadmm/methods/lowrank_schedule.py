"""When AUQ-LR renews its weights, buys directions and changes its relaxation (S12; the method: lowrank.py).

A run that lasts long will last long: the more rounds it has taken, the more will be saved. From iteration 32 on a
renewal may bring new directions, as many as cost a quarter of the rounds since the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from auqadmm.core.state import Setup
from auqadmm.methods.lowrank_server import Server

LASTING = 32  # iterations from which a run counts as one that lasts, and may buy directions
ALPHA, ALPHA_LATER, LATER = 1.8, 1.6, 24  # α before and from iteration LATER on
SPEND, GROWTH = 0.25, 1.25  # of the rounds' cost; of the directions held
ROOM = 2**30  # bytes that the directions of all blocks may take on the server


@dataclass(frozen=True)
class Schedule:
    """`refresh` are the iterations whose local solves may use renewed weights; `relaxation` None: the default α;
    `buys`: may directions be added?"""

    refresh: tuple[int, ...]
    relaxation: float | None
    local: bool
    buys: bool

    def alpha(self, k: int) -> float:
        """α of iteration k."""
        if self.relaxation is not None:
            return self.relaxation
        if not self.local:
            return 1.0
        return ALPHA if k < LATER else ALPHA_LATER

    def told(self, setup: Setup, server: Server, k: int) -> Server:
        """What the blocks are told for iteration k + 1. Whether weights are stale was found out one round earlier."""
        heard, told = server.heard, server.directive
        assert heard is not None
        posterior = told.contest if heard.contest_won and told.contest is not None else told.posterior
        due = (k + 1) in self.refresh
        rank = self._affordable(setup, server, k) if due else 0
        if rank:
            posterior = replace(posterior, rank=rank, choose=False)
        renew, alpha = heard.contest_won or rank > 0 or (due and heard.stale), self.alpha(k + 1)
        directive = replace(
            told,
            posterior=posterior,
            relaxation=alpha,
            refresh=renew,
            new_directions=rank > 0,
            look_ahead=(k + 2) in self.refresh,
            forget=renew or alpha != told.relaxation,  # another map: what was learned of the old one does not count
            contest=None,
        )
        anderson = server.anderson.cleared() if directive.forget else server.anderson
        return replace(server, directive=directive, anderson=anderson, bought=k if rank else server.bought)

    def _affordable(self, setup: Setup, server: Server, k: int) -> int:
        """How many directions iteration k + 1 may bring; 0: none."""
        assert server.U is not None
        if not self.buys or k + 1 < LASTING:
            return 0
        size, held = server.U.shape[1:]
        round_cost = server.directive.posterior.round_cost
        rank = int(SPEND * (k - server.bought) * (setup.unknowns + round_cost) / size)
        rank = min(rank, ROOM // (8 * setup.blocks * size), size)
        return rank if rank >= GROWTH * max(held, 1) else 0
