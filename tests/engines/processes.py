"""Real processes over gloo on loopback: started, watched, and ended whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


def environment(**more):
    """One thread each, this source tree, and nothing of a torchrun that may have started the tests."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    fixed = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    return {**kept, **fixed, **{k: str(v) for k, v in more.items()}}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(count, program, *args, timeout=150, restarts=0):
    """Run a program with torchrun to its end: its exit status, and what it said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--master-port"]
    command += [str(free_port()), "--max-restarts", str(restarts), str(program), *map(str, args)]
    return run(command, timeout)


def run(command, timeout):
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still running after {timeout} s:\n{end(process)[-3000:]}") from None
    return process.returncode, out


def end(process):
    """End a process that was started here: a torchrun first gets the chance to end its own. Returns what it said."""
    if "torch.distributed.run" in process.args and process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(4)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


@contextmanager
def ranks(count, program, *args, prefix=None, torchrun=False, address="127.0.0.1", **more):
    """Start ranks, each by itself or each by a torchrun of its own; yields the processes, and ends those that are left.

    `prefix(rank)`: words in front of a rank's command.
    """
    port = free_port()
    started = []
    try:
        for rank in range(count):
            fixed = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": 0, "MASTER_ADDR": address, "MASTER_PORT": port}
            env = environment(**{**fixed, **more})
            command = [*(prefix(rank) if prefix else ()), sys.executable]
            if torchrun:
                command += ["-m", "torch.distributed.run", "--nnodes", str(count), "--node-rank", str(rank)]
                command += ["--master-addr", address, "--master-port", str(port)]
            command += [str(PROGRAMS / program), *map(str, args)]
            started.append(
                subprocess.Popen(
                    command,
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        yield started
    finally:
        for process in started:
            if torchrun and process.poll() is None:
                process.terminate()
        for process in started:
            end(process)


def ended(process, timeout):
    """The output of a process that ends within `timeout` seconds."""
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it hangs:\n{end(process)[-3000:]}") from None


def wait_for(path, timeout=60.0, what=lambda path: path.exists()):
    """Wait until a file is there (or as it should be)."""
    end = time.monotonic() + timeout
    while not what(path):
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


def reports(folder, ranks):
    """What each of the ranks wrote."""
    return [json.loads((folder / f"rank{r}.json").read_text()) for r in ranks]
