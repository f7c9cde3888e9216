"""How far sites are: round trips, versions, clocks, certificates; before a fit, without any data.

A small question and its answer take the time t of a round trip; with B bytes more in the answer they take t + s·B. A
round of a fit costs about max t, and a number that a site sends 8 · max s, so one round is worth
max t / (8 · max s) numbers: the `round_cost` that "auto" goes by (methods/auto/cost.py).
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm import __version__
from auqadmm.sites.refusals import SitesError
from auqadmm.words import visible

if TYPE_CHECKING:
    from auqadmm.sites.hub import Hub

TRIPS, MESSAGES, LOADS = 20, 10, 3  # how often each is measured
TYPICAL_BYTES = 8 * 64 * 10  # bytes each way: a model of 64 features and 10 classes
LOAD = 1 << 20  # bytes up
PROBE_SECONDS = 10.0  # seconds after which a site is not asked again
SOON = 30.0  # days before a certificate ends at which it is worth a word
CLOCK_WORTH = 60.0  # seconds between clocks that are worth a word; 300 are refused (wire.CLOCKS_APART)


@dataclass(frozen=True)
class SiteCheck:
    """What was measured of one site, in seconds; None where there was no answer.

    `state`: here, absent, left, quiet, or why there was no answer; `clock`: how far its clock is ahead; `per_byte`:
    seconds that a byte takes on its way here.
    """

    name: str
    state: str
    trip: float | None = None
    trip_p95: float | None = None
    typical: float | None = None
    per_byte: float | None = None
    clock: float | None = None
    version: str | None = None
    python: str | None = None

    @property
    def here(self) -> bool:
        return self.trip is not None


@dataclass(frozen=True)
class Checkup:
    """All of it. `failing`: sentences about what keeps a fit from running; `notes`: what is worth a word."""

    sites: tuple[SiteCheck, ...]
    version: str
    certificate_ends: str
    certificate_days: float
    round_cost: float | None
    failing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def checkup(
    hub: Hub, wait: float, now: datetime.datetime | None = None, on_change: Callable[[Any], object] | None = None
) -> Checkup:
    """Wait for sites, at most so long, and measure those that came."""
    names = sorted(hub.settings.sites)
    with suppress(SitesError):  # who is missing is said below
        hub.wait(names, wait, on_change)
    states = {name: status.state for name, status in hub.status().items()}
    sites = tuple(
        measured(hub, name) if states[name] not in ("absent", "left", "quiet")
        else SiteCheck(name, states[name]) for name in names
    )  # fmt: skip
    now = now or datetime.datetime.now(datetime.timezone.utc)
    ends = certificate_ends(hub.settings.certificate)
    days = (ends - now).total_seconds() / 86400
    own = __version__
    failing = [*_away(sites, wait), *_turned_away(sites, hub.refusals()), *_expired(hub.settings.certificate, days)]
    return Checkup(
        sites, own, ends.strftime("%Y-%m-%d"), round(days, 2), round_cost(sites), tuple(failing),
        tuple(_notes(sites, own, days)),
    )  # fmt: skip


def measured(hub: Hub, name: str) -> SiteCheck:
    """Round trips to one site, small, typical and loaded."""
    end = time.monotonic() + PROBE_SECONDS
    clocks: list[tuple[float, float]] = []  # half the trip, and how far ahead
    told: dict[str, Any] = {}

    def trips(times: int, reply: int, pad: int) -> list[float]:
        taken: list[float] = []
        while len(taken) < times and (not taken or time.monotonic() < end):
            before, began = time.time(), time.perf_counter()
            answer = hub.ping(name, reply, pad)
            seconds = time.perf_counter() - began
            if isinstance(answer, str):
                raise SitesError(answer)
            told.update(json.loads(answer.partition(b"\n")[0]))
            clocks.append((seconds / 2, float(told["time"]) - before - seconds / 2))
            taken.append(seconds)
        return taken

    try:
        trips(1, 0, 0)  # the first may open a connection
        small = trips(TRIPS, 0, 0)
        typical, loaded = trips(MESSAGES, TYPICAL_BYTES, TYPICAL_BYTES), trips(LOADS, LOAD, 0)
    except (SitesError, ValueError, KeyError, TypeError) as why:
        return SiteCheck(name, visible(str(why)) if isinstance(why, SitesError) else "gave no answer that can be read")
    trip = statistics.median(small)
    return SiteCheck(
        name, "here", trip, float(np.percentile(small, 95)), statistics.median(typical),
        per_byte(trip, statistics.median(loaded)), min(clocks)[1], str(told["version"]), str(told.get("python", "")),
    )  # fmt: skip


def per_byte(trip: float, loaded: float, size: int = LOAD) -> float | None:
    """Seconds that a byte takes; None where the load made no difference."""
    return (loaded - trip) / size if loaded > trip else None


def round_cost(sites: Sequence[SiteCheck]) -> float | None:
    """Numbers that are worth one round: a round waits for the slowest site, and so does what it carries."""
    trips = [site.trip for site in sites if site.trip is not None]
    bytes_ = [site.per_byte for site in sites if site.per_byte is not None]
    return max(trips) / (8 * max(bytes_)) if trips and bytes_ else None


def certificate_ends(path: Path) -> datetime.datetime:
    """When the certificate that sites see ends: the first in the file."""
    from cryptography import x509

    found = x509.load_pem_x509_certificates(path.read_bytes())[0]
    return found.not_valid_after_utc


# ---------------------------------------------------------------------- sentences
def _away(sites: Sequence[SiteCheck], wait: float) -> list[str]:
    said = {
        "absent": f"has not joined within {wait:g} s: start `auqadmm site site.toml` there; its log says more.",
        "left": "has left: start `auqadmm site site.toml` there again.",
        "quiet": "has joined and gives no sign of life: its process hangs, or the network between is cut.",
    }
    return [
        f"Site {site.name} {said.get(site.state, f'did not answer: {site.state}')}" for site in sites if not site.here
    ]


def _turned_away(sites: Sequence[SiteCheck], refusals: Sequence[str]) -> list[str]:
    """Why somebody was turned away while one was waited for."""
    if all(site.here for site in sites):
        return []
    return [f"Somebody was turned away: {visible(text)}" for text in dict.fromkeys(refusals)]


def _expired(path: Path, days: float) -> list[str]:
    return (
        [] if days > 0 else [f"The certificate {path.name} has expired {-days:.0f} days ago: sites refuse to connect."]
    )


def _notes(sites: Sequence[SiteCheck], own: str, days: float) -> list[str]:
    notes = [
        f"Site {site.name} has auqadmm {site.version}, and this is {own}: install the same at both ends."
        for site in sites if site.version not in (None, own)
    ]  # fmt: skip
    notes += [
        f"The clock of site {site.name} is {abs(site.clock):.0f} s {'ahead' if site.clock > 0 else 'behind'}; from "
        "300 s on its messages are refused."
        for site in sites if site.clock is not None and abs(site.clock) > CLOCK_WORTH
    ]  # fmt: skip
    if 0 < days < SOON:
        notes.append(f"The certificate ends in {days:.0f} days: make or get another.")
    return notes
