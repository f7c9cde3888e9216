"""Seconds per round over slow links: three hosts, 10 Mbit/s each, against what the model of scaling.py predicts.

    python benchmarks/links.py --out results/scaling/links.csv

The hosts are three network namespaces on one bridge, joined by veth pairs; in each of them torchrun starts one process
of the torch engine. `tc tbf` limits what a host may send; without a limit the same run says what computing takes.
Needs Linux, the rights of root, and the commands ip and tc. Namespaces are removed however the run ends.

The problem: softmax regression, 3072 × 10 unknowns (240 KiB), 60 random rows per host: the link is what costs. Gloo
sums in a ring, so P hosts that sum a bytes and put p bytes each side by side predict

    seconds = seconds without a limit + [2(P−1)/P·a + (P−1)·p] / rate
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HOSTS = 3
FEATURES, CLASSES, ROWS = 3072, 10, 60
METHODS = ("auq-lr", "c-admm", "lbfgs")
REPEATS = 2
DEADLINE = 240.0  # seconds that all processes of one run have


# ---------------------------------------------------------------------- the hosts
def missing() -> str:
    """Why there can be no such hosts here; empty if there can."""
    absent = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if absent:
        return f"The command {' and '.join(absent)} is missing (package iproute2)."
    return "" if os.geteuid() == 0 else "Network namespaces need the rights of root."


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=20)


@contextmanager
def hosts(megabits: float | None) -> Iterator[list[str]]:
    """Namespaces 10.78.78.1 to .3 on one bridge, each allowed to send so many Mbit/s; None: as fast as it goes."""
    tag = uuid.uuid4().hex[:5]
    names, bridge = [f"auql{tag}{k}" for k in range(HOSTS)], f"auqc{tag}"
    try:
        command("ip", "link", "add", bridge, "type", "bridge")
        command("ip", "link", "set", bridge, "up")
        for k, name in enumerate(names):
            command("ip", "netns", "add", name)
            command("ip", "link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
            command("ip", "link", "set", f"{name}h", "master", bridge, "up")
            command("ip", "-n", name, "addr", "add", f"10.78.78.{k + 1}/24", "dev", "eth0")
            command("ip", "-n", name, "link", "set", "eth0", "up")
            command("ip", "-n", name, "link", "set", "lo", "up")
            if megabits is not None:
                shape = ["tbf", "rate", f"{megabits:g}mbit", "burst", "8kb", "latency", "400ms"]
                command("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *shape)
        yield names
    finally:
        made = [("netns", name) for name in names] + [("link", f"{name}h") for name in names] + [("link", bridge)]
        for what, name in made:
            subprocess.run(["ip", what, "del", name], capture_output=True, timeout=20, check=False)


# ---------------------------------------------------------------------- one process on each
def launched(names: Sequence[str], method: str, rounds: int, report: Path) -> dict[str, Any]:
    """Run one method on all hosts; what the first process wrote."""
    source = Path(__file__).resolve()
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    paths = [str(source.parents[1] / "src"), kept.get("PYTHONPATH", "")]
    env = kept | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": os.pathsep.join(paths)}
    started: list[subprocess.Popen[str]] = []
    log = report.with_suffix(".log")
    report.unlink(missing_ok=True)
    try:
        with log.open("w", encoding="utf-8") as file:
            for k, name in enumerate(names):
                words = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"]
                words += ["--nnodes", str(HOSTS), "--node-rank", str(k), "--master-addr", "10.78.78.1"]
                words += ["--master-port", "29511", str(source), "--worker", method, str(rounds), str(report)]
                started.append(
                    subprocess.Popen(words, env=env, stdout=file, stderr=file, text=True, start_new_session=True)
                )
            end = time.monotonic() + DEADLINE
            codes = [process.wait(max(end - time.monotonic(), 0.1)) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()  # a torchrun ends its own
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if any(codes) or not report.is_file():
        raise RuntimeError(f"{method} failed, exit status {codes}:\n{log.read_text(encoding='utf-8')[-2000:]}")
    return dict(json.loads(report.read_text(encoding="utf-8")))


def worker(method: str, rounds: int, report: Path) -> None:
    """One process: `rounds` iterations; the first one writes seconds, reductions and bytes."""
    import numpy as np
    from rounds import LeftToCallback, resolve

    import auqadmm as aq

    def blocks(rank: int, world: int) -> list[Any]:
        rng = np.random.default_rng(rank)
        return [(rng.normal(size=(ROWS, FEATURES)) / FEATURES**0.5, np.arange(ROWS) % CLASSES)]

    count = {"seconds": 0.0, "reductions": 0, "summed": 0, "parts": 0}

    class Counted:
        """The torch engine; counts what is sent while the method is at work."""

        spmd = True

        def place(self, *arguments: Any) -> Any:
            engine = aq.engines.Torch(timeout=120).place(*arguments)
            plain_sum, plain_concat = engine.map_sum, engine.map_concat

            def map_sum(*arguments: Any) -> Any:
                own, sums = plain_sum(*arguments)
                if timed.at_work and sums:
                    count["reductions"] += 1
                    count["summed"] += 8 * sum(x.numel() for x in sums.values())
                return own, sums

            def map_concat(*arguments: Any) -> Any:
                parts = plain_concat(*arguments)
                if timed.at_work:
                    count["parts"] += 8 * sum(x.numel() for x in parts.values()) // HOSTS
                return parts

            engine.map_sum, engine.map_concat = map_sum, map_concat
            return engine

    class Timed(LeftToCallback):
        at_work = False  # certificates and results are no rounds of the method

        def init(self, setup: Any, reduce: Any) -> Any:
            return self._timed(super().init, setup, reduce)

        def step(self, state: Any, reduce: Any) -> Any:
            return self._timed(super().step, state, reduce)

        def _timed(self, work: Any, *arguments: Any) -> Any:
            began, self.at_work = time.perf_counter(), True
            found = work(*arguments)
            count["seconds"] += time.perf_counter() - began
            self.at_work = False
            return found

    timed = Timed(resolve(method))
    problem = aq.Problem(aq.Multinomial(), aq.L2(1e-3), blocks)
    limits = {"abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals", "evaluate_every": 0}
    aq.solve(problem, timed, Counted(), max_iter=rounds, **limits)  # type: ignore[arg-type]
    if os.environ["RANK"] == "0":
        report.write_text(json.dumps(count), encoding="utf-8")


# ---------------------------------------------------------------------- all runs
def predicted(found: dict[str, Any], free_seconds: float, megabits: float) -> float:
    """Seconds per reduction by the model, from the seconds per reduction of a run without a limit."""
    sent = 2 * (HOSTS - 1) / HOSTS * found["summed"] + (HOSTS - 1) * found["parts"]
    return free_seconds + 8 * sent / (megabits * 1e6) / found["reductions"]


def benchmark(megabits: float, rounds: int, out: Path) -> list[dict[str, Any]]:
    from scaling import write

    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        free: dict[str, float] = {}
        for rate in (None, megabits):
            with hosts(rate) as names:
                for method in METHODS:
                    runs = [launched(names, method, rounds, Path(folder) / f"{method}{k}.json") for k in range(REPEATS)]
                    found = min(runs, key=lambda run: float(run["seconds"]))  # others may use the machine too
                    each = found["seconds"] / found["reductions"]
                    free.setdefault(method, each)
                    row = {"method": method, "mbit": "" if rate is None else rate, "rounds": found["reductions"]}
                    row |= {"summed_bytes": found["summed"], "parts_bytes": found["parts"], "seconds_per_round": each}
                    row["predicted"] = "" if rate is None else predicted(found, free[method], rate)
                    done.append(row)
                    write(out, done)
                    print(json.dumps(row), flush=True)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=10.0, help="what each host may send, in Mbit/s")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs/links.csv"))
    parser.add_argument("--worker", nargs=3, metavar=("METHOD", "ROUNDS", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        worker(given.worker[0], int(given.worker[1]), Path(given.worker[2]))
        return 0
    if why := missing():
        print(why)
        return 1
    # so that what was made is also removed when the run is ended from outside
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        benchmark(given.mbit, given.rounds, given.out)
    except subprocess.CalledProcessError as error:
        print(f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
