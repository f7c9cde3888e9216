"""A site at work: settings, policy and data sets put together, run after run.

A plan may wait for a person: `approve = "ask"` in the policy. It then lies in the site's state folder until
`auqadmm site approve RUN` writes a yes or a no beside it; whoever asks for it waits.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from auqadmm.errors import InputError
from auqadmm.files.tabular import read
from auqadmm.sites.daemon import RunInfo, serve
from auqadmm.sites.masks import Masker
from auqadmm.sites.policy import Plan, Policy, PolicyError
from auqadmm.sites.refusals import Declined
from auqadmm.sites.session import SiteHolder
from auqadmm.sites.settings import SiteSettings
from auqadmm.sites.tables import SiteTable, header
from auqadmm.words import listed, quoted

RUN = re.compile("[0-9a-f]{8,64}")
LOOK = 0.2  # seconds between looks for a decision
PATIENCE = 3600.0  # seconds that a plan waits for a person


def state_of(settings: SiteSettings) -> Path:
    """Where a site keeps what is its own: budgets, rosters, parts of checkpoints, plans that wait."""
    return settings.audit.parent / f"{settings.name}.state"


@dataclass
class Run:
    """One run at this site, as the daemon calls it."""

    holder: SiteHolder
    info: RunInfo

    def __call__(self, number: int, body: bytes) -> bytes:
        began = time.perf_counter()
        answer = self.holder(body)
        told = self.holder.told
        assert told is not None
        self.info.audit.write(
            self.info.run,
            number,
            answer,
            request=told.request,
            operation=told.operation or "",
            shapes={name: tuple(shape) for name, shape in told.shapes.items()},
            masked=told.masked,
            seconds=time.perf_counter() - began,
            error=told.error or "",
        )
        return answer

    def close(self) -> None:
        self.holder.versions.clear()


def opener(
    settings: SiteSettings, policy: Policy, stop: threading.Event, log: Callable[[str], object]
) -> Callable[[RunInfo], Run]:
    """What begins a run at this site."""
    state = state_of(settings)

    def open_run(info: RunInfo) -> Run:
        missing = [name for name in info.sites if name != settings.name and name not in settings.roster]
        if policy.masks == "required" and missing:
            raise Declined(f"site {settings.name} has no key of {listed(missing)}, which masks need.")

        def masker(run: str, sites: tuple[str, ...]) -> Masker:
            others = {name: settings.roster[name] for name in sites if name != settings.name}
            return Masker(settings.key, others, run, settings.name)

        def table(name: str) -> SiteTable:
            if name != info.data.name:
                raise PolicyError("another data set than the run was opened for")
            data = info.data
            return SiteTable(name, data.path, settings.name, policy, data.columns, data.never)

        def approve(run: str, plan: Plan) -> None:
            if policy.approve == "ask":
                decided(state, run, info.coordinator, plan, stop, log)

        holder = SiteHolder(
            run=info.run,
            own=settings.name,
            policy=policy,
            roster={name: key.line for name, key in settings.roster.items()},
            table=table,
            masker=masker,
            state=state,
            secret=settings.key.sign(b"auqadmm digests 1"),
            approve=approve,
            log=log,
            largest=settings.limits.largest,
        )
        return Run(holder, info)

    return open_run


def run_site(settings: SiteSettings, stop: threading.Event, log: Callable[[str], object]) -> None:
    """Join, wait, answer, run after run, until `stop` is set or Ctrl-C."""
    policy = Policy.read(str(settings.file), settings.policy)
    serve(settings, opener(settings, policy, stop, log), stop, log)


# ---------------------------------------------------------------------- a person's decision
def decided(
    state: Path, run: str, coordinator: str, plan: Plan, stop: threading.Event, log: Callable[[str], object]
) -> None:
    """Wait until a person at the site has said yes or no."""
    folder = state / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    paper, answer = folder / f"{run}.json", folder / f"{run}.answer"
    paper.write_text(json.dumps({"coordinator": coordinator, **asdict(plan)}, indent=1))
    log(f"{coordinator} wants to {plan.words()} It waits: auqadmm site approve {run[:8]} (or refuse {run[:8]}).")
    end = time.monotonic() + PATIENCE
    try:
        while not answer.exists():
            if stop.wait(LOOK):
                raise PolicyError("this site leaves, and nobody has approved the plan")
            if time.monotonic() > end:
                raise PolicyError("nobody at this site has approved the plan in time")
        if answer.read_text().strip() != "yes":
            raise PolicyError("a person at this site has refused the plan")
        log(f"the plan of run {run[:8]} was approved.")
    finally:
        for path in (paper, answer):
            path.unlink(missing_ok=True)


def waiting(settings: SiteSettings) -> dict[str, dict[str, object]]:
    """Plans that wait for a decision, by run."""
    found = sorted((state_of(settings) / "plans").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in found}


def decide(settings: SiteSettings, run: str, yes: bool) -> str:
    """Write a decision; returns the whole name of the run."""
    plans = [name for name in waiting(settings) if name.startswith(run)]
    if not RUN.fullmatch(run) or len(plans) != 1:
        raise InputError(f"No plan of a run {quoted(run)} waits at {settings.name}.")
    path = state_of(settings) / "plans" / f"{plans[0]}.answer"
    path.write_text("yes" if yes else "no")
    return plans[0]


# ---------------------------------------------------------------------- before joining
def checked(settings: SiteSettings) -> list[str]:
    """What this site would let out, as lines of text; every file is read."""
    policy = Policy.read(str(settings.file), settings.policy)
    lines = [f"Site {settings.name}, key {settings.key.public.fingerprint}"]
    lines.append(f"Coordinator {settings.coordinator.name} at {settings.url}, key {settings.coordinator.fingerprint}")
    for name, data in settings.data.items():
        free = SiteTable(name, data.path, settings.name, policy, data.columns, data.never).header()
        rows = _rows(data.path)
        enough = "" if rows >= policy.min_rows else f": fewer than min_rows = {policy.min_rows}, so it is refused"
        lines.append(f"Data set {name}: {rows} rows{enough}")
        lines.append(f"  may be used: {', '.join(free) or 'nothing'}")
        never = [column for column in header(data.path) if column not in free]
        lines.append(f"  never: {', '.join(never) or 'nothing is kept back'}")
    if policy.masks == "required":
        lines.append("What leaves: sums over sites, masked; nothing of this site can be seen in them.")
    elif policy.sums_only:
        lines.append("What leaves: sums over the rows of this site.")
    else:
        lines.append("What leaves: sums over the rows of this site, and its weights and multipliers.")
    lines.append("Always: names of columns, labels, levels of categories, numbers of rows, and how long answers take.")
    lines.append(f"Roster: {', '.join(settings.roster) or 'empty, so masks cannot be used'}")
    lines.append(f"Audit: {settings.audit}")
    lines += [f"  {name} = {getattr(policy, name)!r}" for name in Policy.__dataclass_fields__]
    return lines


def _rows(path: Path) -> int:
    from auqadmm.files.tabular import Roles

    return read(path, Roles(features=header(path), labels=False)).rows
