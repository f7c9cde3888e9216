"""What a person at the coordinator may want to know while a fit runs: gathered here, shown by sites/watch.py.

Everything shown is known to the coordinator anyway: names of sites, counts, the bound on the gap. No value of a model.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from auqadmm.sites.ledger import Amount, Ledger, words_of
from auqadmm.sites.refusals import SitesError
from auqadmm.words import counted, visible

if TYPE_CHECKING:
    from auqadmm.core.result import Result
    from auqadmm.core.solve import Iteration
    from auqadmm.sites.hub import Hub
    from auqadmm.sites.watch import Watch

AWAY = ("absent", "left", "quiet")
SHOWN_REFUSALS = 5
SHORT_ASK = 0.5  # seconds after which an ask that is not answered is worth a word


class Board:
    """The state of a fit over sites. `watch`: show it, on a free port or on this one."""

    def __init__(self, watch: bool | int = False) -> None:
        self.watch, self.page = watch, None if watch is False else _page(watch)
        self.lock = threading.Lock()
        self.hub: Hub | None = None
        self.ledger: Ledger | None = None
        self.began = time.monotonic()
        self.over: float | None = None
        self.study: dict[str, Any] = {}
        self.asking: set[str] = set()  # sites where a person decides
        self.row: dict[str, Any] = {}
        self.outcome: dict[str, Any] | None = None
        self.sites: list[dict[str, Any]] = []

    # ------------------------------------------------------------------ the page
    @property
    def url(self) -> str:
        return "" if self.page is None else self.page.url

    def open(self) -> None:
        if self.page is not None and not self.page.url:
            self.page.start(self.view)

    def close(self) -> None:
        if self.page is not None:
            self.page.stop()

    # ------------------------------------------------------------------ what happens
    def attach(self, hub: Hub) -> None:
        self.hub, self.ledger = hub, hub.ledger
        self.open()

    def begun(self, data: str, model: str, method: str, masked: bool, terms: Mapping[str, Mapping[str, Any]]) -> None:
        with self.lock:
            self.study = {"data": data, "model": model, "method": method, "masked": masked}
            self.asking = {name for name, told in terms.items() if told.get("approve") == "ask"}
            self.row, self.outcome, self.over = {}, None, None

    def iteration(self, event: Iteration) -> None:
        row = event.row
        gap, guess = row.relative, row.expected
        with self.lock:
            known = {"bound": gap, "judged": row.iteration} if gap is not None else {}
            self.row |= {"iteration": row.iteration, "rounds": row.rounds, "method": event.method, **known}
            self.row["guess"] = guess if guess is not None and math.isfinite(guess) else None

    def solved(self, result: Result) -> None:
        """What `solve` found; its certificate is the last word on the gap."""
        found, last = result.certificate, result.history[-1] if len(result.history) else None
        with self.lock:
            if found.relative_gap is not None:
                self.row |= {"bound": found.relative_gap, "evidence": found.evidence}
            if last is not None:
                self.row |= {"iteration": last.iteration, "rounds": last.rounds}
        self.ended(result.message, result.status in ("converged", "rounding"))

    def ended(self, words: str, good: bool) -> None:
        with self.lock:
            self.outcome, self.over = {"good": good, "words": visible(words)}, time.monotonic()

    def failed(self, error: BaseException | None) -> None:
        """The sentence of an error that ended the work; an exit code of a command says nothing more."""
        from auqadmm.errors import AuqadmmError

        if isinstance(error, KeyboardInterrupt):
            self.ended("Interrupted by Ctrl-C.", False)
        elif isinstance(error, AuqadmmError | ValueError):
            self.ended(str(error), False)
        elif isinstance(error, Exception) and self.outcome is None:
            self.ended(f"The command ended with {type(error).__name__}.", False)
        self.view()  # the last look, before the server goes
        self.hub = None

    # ------------------------------------------------------------------ what is shown
    def view(self) -> dict[str, Any]:
        """All of it as plain values."""
        hub, ledger = self.hub, self.ledger or Ledger()
        request, operation, since = ledger.asked
        totals, waited = ledger.by_site(), time.monotonic() - since
        with self.lock:
            outcome, study, asking = self.outcome, dict(self.study), set(self.asking)
            row, end = dict(self.row), self.over or time.monotonic()
        if hub is not None:
            with suppress(SitesError):
                self.sites = [
                    _site(status.name, status.state, status.since, request, status.name in asking, outcome)
                    for status in hub.status().values()
                ]
        sites = [site | asdict(totals.get(site["name"], Amount())) for site in self.sites]
        asked = [{"what": words_of(*what), **asdict(amount)} for what, amount in ledger.by_operation().items()]
        words = _headline(sites, outcome, row, (request, operation, waited))
        return {
            "headline": words, "study": study, "sites": sites, "row": row, "gap": _gap(row), "asked": asked,
            "elapsed": end - self.began, "outcome": outcome, "total": asdict(sum(totals.values(), Amount())),
            "refused": [] if hub is None else [visible(text) for text in hub.refusals()[-SHOWN_REFUSALS:]],
        }  # fmt: skip


def _page(watch: bool | int) -> Watch:
    from auqadmm.sites.watch import Watch

    return Watch(port=0 if watch is True else int(watch))


def _site(
    name: str, state: str, since: float | None, request: str, asks: bool, outcome: dict[str, Any] | None
) -> dict[str, Any]:
    """A site's state in one word of a fixed list (`mood` is its colour), and in words for a person."""
    ago = "" if since is None else f"{since:.0f} s"
    if outcome is not None and not outcome["good"] and state in AWAY and since is not None:
        kind, words, mood = "lost", f"lost: last heard of {ago} ago", "no"
    elif state == "absent":
        kind, words, mood = "absent", "has not joined yet", "partly"
    elif state == "left":
        kind, words, mood = "left", "has left", "no"
    elif state == "quiet":
        kind, words, mood = "quiet", f"quiet for {ago}", "no"
    elif state == "working" and request == "plan" and asks:
        kind, words, mood = "approval", "a person there has to approve", "partly"
    elif state == "working":
        kind, words, mood = "working", "computing", "yes"
    else:
        kind, words, mood = "joined", "here", "yes"
    return {"name": name, "state": kind, "words": words, "mood": mood, "since": since}


def _headline(
    sites: Sequence[Mapping[str, Any]],
    outcome: Mapping[str, Any] | None,
    row: Mapping[str, Any],
    asked: tuple[str, str, float],
) -> str:
    if outcome is not None:
        return "The fit has converged." if outcome["good"] else "The fit has ended without a converged model."
    away = [site["name"] for site in sites if site["state"] in AWAY]
    people = [site["name"] for site in sites if site["state"] == "approval"]
    if not sites:
        return "The coordinator starts."
    if away:
        return f"Waiting for {_names(away)} to join." if not row else f"No sign of life from {_names(away)}."
    if people:
        return f"Waiting for {_names(people)}: a person there has to approve."
    request, operation, waited = asked
    slow = [site["name"] for site in sites if site["state"] == "working"]
    if slow and waited > SHORT_ASK and len(slow) < len(sites):
        return f"Waiting for the answer of {_names(slow)} ({operation or request})."
    if not row:
        return f"All {counted(len(sites), 'site')} are here; the data sets are prepared."
    return f"Iteration {row['iteration']} by {row['method']}."


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _gap(row: Mapping[str, Any]) -> dict[str, Any]:
    """The bound on the relative gap where one is known, else what the server expects; never the one for the other."""
    if row.get("evidence") is not None:
        return {"value": row["bound"], "words": f"at most ({row['evidence']})"}
    if row.get("bound") is not None:
        return {"value": row["bound"], "words": f"at most, judged in iteration {row['judged']}"}
    if row.get("guess") is not None:
        return {"value": row["guess"], "words": "expected; no bound yet"}
    return {"value": None, "words": "no bound yet"}
