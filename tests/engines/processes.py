"""Real processes over gloo on loopback: started, watched, and ended whatever happens."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
# a process of its own that has imported the library: ranks are forked from it, instead of importing it one by one
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed", "auqadmm.testing", "auqadmm.engines.torch_distributed"])


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


class Forked:
    """A program in a process of its own and its own session, with what is used here of `Popen`."""

    def __init__(self, program, args, env):
        self.args = [str(program), *map(str, args)]
        handle, self.path = tempfile.mkstemp(prefix="said-")
        os.close(handle)
        self.said = None
        self.process = FORKS.Process(target=_become, args=(self.args, env, self.path))
        sys.path.insert(0, str(ROOT))  # the child takes over the path, and finds this module
        try:
            self.process.start()
        finally:
            sys.path.remove(str(ROOT))
        self.pid = self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout=None):
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        if self.said is None:
            self.said = Path(self.path).read_text()
            os.unlink(self.path)
        return self.said, None


def _become(args, env, said):
    os.setsid()
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(env)
    warnings.simplefilter("ignore")
    sys.modules["torch"].set_num_threads(1)
    sys.argv = args
    runpy.run_path(args[0], run_name="__main__")


def together(count, program, *args, timeout=150):
    """Run a program in several processes to their end: the worst exit status, and what they said."""
    with ranks(count, program, *args) as started:
        said = [ended(process, timeout) for process in started]
    return max((process.returncode for process in started), key=abs), "".join(said)


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
            if not (prefix or torchrun):
                started.append(Forked(PROGRAMS / program, args, env))
                continue
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
