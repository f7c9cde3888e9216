"""Faults at random moments of a fit over sites: `python -m tests.sites.campaign --count 200 --seed 7 [--only K]`.

Four sites and a coordinator, each in a network namespace of its own (needs root; else all are on loopback, where
cables cannot be cut and sites are frozen instead). Each fault hits one of them after a random number of answers. A run
has to end within `BOUND` seconds and the time of two undisturbed runs after its fault is over, with the v of the
undisturbed run to `SAME`; or with a sentence that names the site, and then the same call, once the site is well, has to
give that v. With masks nobody can say which site spoilt a sum: there the sentence says so.

    fine      as said above
    hang      not ended in time
    wrong     another v, or a sentence that does not name the site
    lost      the same call again did not give the v
    uncaught  an exception that is no sentence of this library
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import auqadmm as aq
from auqadmm.errors import AuqadmmError
from tests.sites.liar import LIES, lying
from tests.sites.rig import QUIET, SITES, Keys, Network, Rig, end, ended, network, swept

BOUND = 20.0  # seconds, of which quiet, round and join of sites.toml are 20.5; and two undisturbed runs
SAME = 1e-10
MOST = 15  # iterations
UVICORN = ("uvicorn", "uvicorn.lifespan.off", "uvicorn.loops.asyncio", "uvicorn.protocols.http.h11_impl")
METHODS = ("auto", "newton", "lbfgs", "c-admm")
CLASSES = ("fine", "hang", "wrong", "lost", "uncaught")
KINDS = (
    "kill", "kill", "freeze short", "freeze long", "leave", "restart", "cut short", "cut long", "slow",
    "coordinator", "coordinator", *(f"lie: {lie}" for lie in LIES),
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What happens, to whom, after which part of the answers of the undisturbed run, and for how many seconds.
    `rule`: what `solve` does when a site is lost."""

    number: int
    kind: str
    method: str
    masked: bool
    rule: str
    site: str
    moment: float
    seconds: float

    @staticmethod
    def drawn(seed: int, number: int) -> Fault:
        rng = np.random.default_rng([seed, number])
        kind = str(rng.choice(KINDS))
        long = rng.uniform(QUIET + 0.7, QUIET + 2.0)
        seconds = rng.uniform(0.1, 0.5 * QUIET) if "short" in kind else long if "long" in kind else rng.uniform(0, 1.0)
        return Fault(
            number=number,
            kind=kind,
            method=str(rng.choice(METHODS)),
            masked=bool(rng.integers(2)),
            rule=str(rng.choice(["restart", "stop"])),
            site=str(rng.choice(SITES)),
            moment=round(float(rng.uniform(0, 0.95)), 3),
            seconds=round(float(seconds), 2),
        )


@dataclass(frozen=True)
class Outcome:
    """One line of the table. `how`: it ended; `after`: seconds from the end of the fault to that of the run."""

    number: int
    kind: str
    method: str
    masked: bool
    rule: str
    site: str
    answer: int
    answers: int
    result: str
    how: str
    after: float
    said: str


@dataclass(frozen=True)
class Undisturbed:
    v: list[float]
    answers: int
    seconds: float


# ---------------------------------------------------------------------- the coordinator's process
def fit(folder: Path, method: str, rule: str) -> None:
    """Writes told.json: v and message, or the error."""
    told: dict[str, object] = {}
    began = time.monotonic()
    try:
        with aq.Sites(folder / "sites.toml") as sites:
            heart = aq.SiteData("heart", target="sick")
            problem = aq.Problem(aq.Logistic(reduction="pooled"), aq.L2(0.01), heart, intercept=True)
            saved = aq.Checkpoint(folder / "saved", every=2, restarts=5)
            result = aq.solve(problem, method, engine=sites, max_iter=MOST, checkpoint=saved, on_loss=rule)
            told = {"v": result.v.ravel().tolist(), "status": str(result.status.value), "said": result.message}
    except AuqadmmError as error:
        told = {"status": type(error).__name__, "said": str(error)}
    except BaseException:
        told = {"status": "uncaught", "said": traceback.format_exc()}
    told["seconds"] = time.monotonic() - began
    (folder / "told.part").write_text(json.dumps(told))
    (folder / "told.part").replace(folder / "told.json")


class Run:
    """One fit on a rig, and one fault."""

    def __init__(self, rig: Rig, fault: Fault, well: Undisturbed | None) -> None:
        self.rig, self.fault, self.well = rig, fault, well
        self.told = rig.folder / "told.json"

    def begin(self, rule: str) -> None:
        self.told.unlink(missing_ok=True)
        self.rig.coordinate(lambda: fit(self.rig.folder, self.fault.method, rule))

    def end(self, seconds: float) -> dict[str, object] | None:
        """What was told; None if it has not ended in time."""
        limit = time.monotonic() + seconds
        while not ended(self.rig.pids["hub"]):
            if time.monotonic() > limit:
                return None
            time.sleep(0.01)
        self.rig.pids.pop("hub")
        if not self.told.exists():
            return {"status": "uncaught", "said": "the process ended without a word"}
        found: dict[str, object] = json.loads(self.told.read_text())
        return found

    def undisturbed(self) -> Undisturbed:
        self.begin("stop")
        for name in SITES:
            self.rig.start(name)
        told = self.end(60)
        assert told is not None
        assert isinstance(told.get("v"), list), told
        assert isinstance(told["seconds"], float)
        return Undisturbed(told["v"], self.rig.answered(SITES[0]), told["seconds"])

    # ------------------------------------------------------------------ a fault
    @property
    def bound(self) -> float:
        assert self.well is not None
        return BOUND + 2 * self.well.seconds

    def outcome(self) -> Outcome:
        fault, well = self.fault, self.well
        assert well is not None
        at = int(fault.moment * well.answers)
        self.begin(fault.rule)
        for name in SITES:
            lie = fault.kind.startswith("lie") and name == fault.site
            self.rig.start(name, *([lying(fault.kind.split()[1], at + 1)] if lie else []))
        limit = time.monotonic() + BOUND
        while self.rig.answered(fault.site) < at and not self.told.exists() and time.monotonic() < limit:
            time.sleep(0.002)
        self.hurt()
        over = time.monotonic()
        told = self.end(self.bound)
        after = time.monotonic() - over
        result, how = self.judged(told)
        if how == "named":
            result, how = self.again()
        said = "" if told is None else " ".join(str(told["said"]).split())
        return Outcome(
            fault.number, fault.kind, fault.method, fault.masked, fault.rule, fault.site, at, well.answers,
            result, how, round(after, 2), said[-400:],
        )  # fmt: skip

    def hurt(self) -> None:
        rig, net, name, seconds = self.rig, self.rig.net, self.fault.site, self.fault.seconds
        kind = self.fault.kind
        if net is None:
            kind = kind.replace("cut", "freeze").replace("slow", "freeze short")
        match kind.split():
            case ["kill"]:
                rig.stop(name)
                time.sleep(seconds)
                rig.start(name)
            case ["restart"]:
                rig.stop(name)
                rig.start(name)
            case ["leave"]:
                rig.leave(name)
                rig.start(name)
            case ["freeze", _]:
                rig.send(name, signal.SIGSTOP)
                time.sleep(min(seconds, QUIET / 2) if "short" in kind else seconds)
                rig.send(name, signal.SIGCONT)
            case ["cut", _] if net is not None:
                net.cable(name, up=False)
                time.sleep(seconds)
                net.cable(name, up=True)
            case ["slow"] if net is not None:
                net.slow(name, "200kbit")
                time.sleep(seconds)
                net.slow(name, None)
            case ["coordinator"]:
                rig.stop("hub")
                time.sleep(seconds / 2)
                if not self.told.exists():
                    self.begin(self.fault.rule)
                else:
                    rig.pids["hub"] = 0
            case ["lie:", _]:
                pass

    def judged(self, told: dict[str, object] | None) -> tuple[str, str]:
        if told is None:
            return "hang", ""
        said, status = str(told["said"]), str(told["status"])
        if status == "uncaught":
            return "uncaught", ""
        if status != "interrupted" and "v" in told:
            off = self.off(told)
            return ("fine", f"as undisturbed, {off:.0e}") if off <= SAME else ("wrong", f"off by {off:.1e}")
        hidden = self.fault.masked and "masks hide which one" in said
        if self.fault.site in said or hidden:
            return "fine", "named"
        return "wrong", "the site is not named"

    def off(self, told: dict[str, object]) -> float:
        assert self.well is not None
        v = told["v"]
        assert isinstance(v, list)
        return float(np.abs(np.array(v) - np.array(self.well.v)).max())

    def again(self) -> tuple[str, str]:
        """The same call, once the site is well."""
        for name in SITES:
            if self.fault.kind.startswith("lie") and name == self.fault.site:
                self.rig.stop(name)
                self.rig.start(name)
        self.begin("restart")
        told = self.end(self.bound)
        if told is None:
            return "hang", "named, then hung"
        if told["status"] == "uncaught":
            return "uncaught", f"named, then {told['said']}"
        if "v" not in told or told["status"] == "interrupted":
            return "lost", f"named, then {told['said']}"
        off = self.off(told)
        return ("fine", f"named, then right, {off:.0e}") if off <= SAME else ("lost", f"named, then off by {off:.1e}")


# ---------------------------------------------------------------------- many
def warm() -> None:
    """Load all that a fit needs before processes are forked: by fits without a network, and the parts of a server."""
    from importlib import import_module

    from auqadmm.sites.policy import Policy
    from tests.sites.inside import DATA, InsideSites, posed

    torch.set_num_threads(1)  # no threads, for processes that are forked have none
    for name in ("http.client", "tomllib", *UVICORN):
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            saved = aq.Checkpoint(Path(folder) / f"saved-{method}")
            with InsideSites(Path(folder), Policy(masks="required")) as sites:
                aq.solve(posed(DATA), method, engine=sites, max_iter=2, checkpoint=saved)


class Campaign:
    def __init__(self, folder: Path, net: Network | None) -> None:
        self.folder, self.net = folder, net
        self.keys = Keys(folder / "keys", net.host if net else "127.0.0.1")

    def well(self, method: str, masked: bool) -> Undisturbed:
        """A run without a fault; other processes take it from its file."""
        known = self.folder.parent / f"well-{method}-{masked}.json"
        if not known.exists():
            fault = Fault(0, "none", method, masked, "stop", SITES[0], 0.0, 0.0)
            with Rig(self.folder / f"well-{method}-{masked}", self.keys, masked, self.net) as rig:
                made = json.dumps(asdict(Run(rig, fault, None).undisturbed()))
            own = known.with_suffix(f".{os.getpid()}")
            own.write_text(made)
            own.replace(known)
        return Undisturbed(**json.loads(known.read_text()))

    def __call__(self, fault: Fault) -> Outcome:
        well = self.well(fault.method, fault.masked)
        with Rig(self.folder / str(fault.number), self.keys, fault.masked, self.net) as rig:
            return Run(rig, fault, well).outcome()


def part(folder: Path, name: str, wanted: bool, faults: Sequence[Fault], show: Callable[[Outcome], None]) -> None:
    with network(name, wanted) as net:
        campaign = Campaign(folder, net)
        if net is None:
            sys.stdout.write("No network namespaces: all on loopback, sites are frozen where a cable would be cut.\n")
        for fault in faults:
            show(campaign(fault))


def spread(folder: Path, loopback: bool, faults: Sequence[Fault], processes: int) -> list[Outcome]:
    """All of them, in several processes; each writes lines that are read at the end."""

    def show(outcome: Outcome) -> None:
        line = json.dumps(asdict(outcome))
        with (folder / "lines.jsonl").open("a") as file:
            file.write(line + "\n")
        o = outcome
        sys.stdout.write(
            f"{o.number:4d}  {o.kind:13s} {o.method:7s} {'masked' if o.masked else 'clear':6s} {o.rule:7s} {o.site:6s} "
            f"{o.answer:3d}/{o.answers:<3d} {o.after:6.2f} s  {o.result:8s} {o.how}\n"
        )
        if o.result != "fine":
            sys.stdout.write(f"      {o.said}\n")
        sys.stdout.flush()

    children, own = [], f"aq{os.getpid()}"
    sys.stdout.flush()
    for k in range(processes):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                part(folder / f"part{k}", f"{own}n{k}", not loopback, faults[k::processes], show)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        children.append(pid)
    try:
        for pid in children:
            os.waitpid(pid, 0)
    finally:  # by Ctrl-C too: processes that they forked end with them
        for pid in children:
            end(pid)
        swept(own)
    path = folder / "lines.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((Outcome(**json.loads(line)) for line in lines), key=lambda o: o.number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", type=int, help="one fault, by its number")
    parser.add_argument("--processes", type=int, default=1, help="faults at a time")
    parser.add_argument("--loopback", action="store_true", help="without network namespaces")
    parser.add_argument("--keep", type=Path, help="a new folder for all files of all runs")
    parser.add_argument("--out", type=Path, help="a JSON file for the counts and the table")
    parser.add_argument("--commit", help="of the code, where there is no git")
    given = parser.parse_args()
    numbers = range(given.count) if given.only is None else [given.only]
    faults = [Fault.drawn(given.seed, number) for number in numbers]
    began = time.monotonic()
    warm()
    with tempfile.TemporaryDirectory() as folder:
        done = spread(given.keep or Path(folder), given.loopback, faults, min(given.processes, len(faults)))
    counts = Counter(outcome.result for outcome in done)
    slowest = max((outcome.after for outcome in done), default=0.0)
    if given.out is not None:
        from benchmarks.sites_fits import about

        found = about(given.commit) | {
            "seed": given.seed,
            "faults": len(done),
            "namespaces": not given.loopback,
            "counts": {name: counts[name] for name in CLASSES},
            "slowest": slowest,
            "kinds": Counter(outcome.kind for outcome in done),
            "table": [asdict(outcome) for outcome in done],
        }
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(f"{time.monotonic() - began:.0f} s; the slowest ended {slowest:.1f} s after its fault.\n")
    sys.stdout.write(
        f"{len(done)} faults: {counts['hang']} hangs, {counts['wrong']} wrong, {counts['lost']} lost, "
        f"{counts['uncaught']} uncaught\n"
    )
    return 0 if len(done) == len(faults) == counts["fine"] else 1


if __name__ == "__main__":
    sys.exit(main())
