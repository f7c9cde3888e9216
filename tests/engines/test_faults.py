"""Processes that die, hang or are cut off in mid-iteration: the others end in bounded time and say who was lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import uuid
from contextlib import contextmanager

import pytest

from tests.engines.processes import PROGRAMS, ended, ranks, reports, torchrun, wait_for
from tests.engines.programs.endless import endless, everything


def iterations(folder, rank, at_least=5):
    """Wait until the run is under way."""
    wait_for(folder / f"rank{rank}.log", what=lambda log: log.exists() and len(log.read_text().split()) >= at_least)


def same_interrupted(found, *words):
    for saw in found:
        assert saw["status"] == "interrupted", saw
        assert saw["n_iter"] >= 5
        assert all(word in saw["message"] for word in words), saw["message"]
    assert abs(found[0]["n_iter"] - found[-1]["n_iter"]) <= 1


def goes_on(folder, saw):
    """The message says from where, and the same call does so, here with all blocks in one process."""
    last = re.search(r"The same call goes on from the checkpoint of iteration (\d+) in (.*)\.$", saw["message"])
    assert last, saw["message"]
    assert last[2] == str(folder / "run")
    assert int(last[1]) > saw["n_iter"] - 2
    result = endless(folder / "run", blocks=everything, max_iter=int(last[1]) + 3)
    assert result.n_iter == int(last[1]) + 3
    assert result.message.startswith("Not converged: stopped at the limit")


def test_kill_9_of_one_process(tmp_path):
    with ranks(3, "endless.py", tmp_path, 60) as processes:
        iterations(tmp_path, 2)
        processes[2].send_signal(signal.SIGKILL)
        for process in processes[:2]:
            ended(process, 20)
    same_interrupted(
        reports(tmp_path, [0, 1]), "Rank 2 (block 4 to block 5) was lost", "connection was closed", "Stopped in"
    )
    goes_on(tmp_path, reports(tmp_path, [0])[0])


def test_kill_9_of_the_process_that_the_others_met_at(tmp_path):
    with ranks(3, "endless.py", tmp_path, 60) as processes:
        iterations(tmp_path, 0)
        processes[0].send_signal(signal.SIGKILL)
        for process in processes[1:]:
            ended(process, 30)
    found = reports(tmp_path, [1, 2])
    same_interrupted(found, "cannot be reached", "v is the iterate before it")
    goes_on(tmp_path, found[0])


def test_a_process_that_hangs_is_lost_after_the_timeout(tmp_path):
    with ranks(3, "endless.py", tmp_path, 3) as processes:
        iterations(tmp_path, 1)
        processes[1].send_signal(signal.SIGSTOP)
        for process in (processes[0], processes[2]):
            ended(process, 30)
    same_interrupted(reports(tmp_path, [0, 2]), "Rank 1 (block 2 to block 3) was lost", "no answer within 3 s")


def test_kill_9_under_torchrun(tmp_path):
    """torchrun ends the others with SIGTERM: they still return what they have."""
    code, out = torchrun(3, PROGRAMS / "suicide.py", tmp_path, timeout=60)
    assert code != 0, out
    for saw in reports(tmp_path, [0, 2]):
        assert saw["status"] == "interrupted"
        assert "Rank 1" in saw["message"], saw


@pytest.mark.campaign
def test_a_process_that_never_comes(tmp_path):
    with ranks(1, "endless.py", tmp_path, 3, WORLD_SIZE=2) as processes:
        ended(processes[0], 40)
    (saw,) = reports(tmp_path, [0])
    assert saw["status"] == "ProcessError"
    assert "did not find each other within 3 s" in saw["message"]


# ------------------------------------------------------------------ three hosts
@contextmanager
def three_hosts():
    """Three network namespaces on one bridge, 10.77.x.1 to 10.77.x.3: their names."""
    tag = uuid.uuid4().hex[:5]
    names = [f"auq{tag}{k}" for k in range(3)]
    bridge = f"auqb{tag}"

    def ip(*words):
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)

    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for k, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{name}h", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"10.77.77.{k + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names, lambda k: ip("link", "set", f"{names[k]}h", "down")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)
            subprocess.run(["ip", "link", "del", f"{name}h"], capture_output=True, timeout=20, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, timeout=20, check=False)


def namespaces():
    """Why there are no network namespaces here; empty if there are."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "needs the command ip and the rights of root"
    try:
        with three_hosts():
            return ""
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces are not permitted: {getattr(error, 'stderr', '') or error}"


@pytest.mark.campaign
def test_a_link_between_hosts_is_cut(tmp_path):
    if why := namespaces():
        pytest.skip(why)
    with three_hosts() as (names, cut):
        options = {"torchrun": True, "address": "10.77.77.1", "GLOO_SOCKET_IFNAME": "eth0"}
        with ranks(3, "endless.py", tmp_path, 4, prefix=lambda k: ["ip", "netns", "exec", names[k]], **options):
            iterations(tmp_path, 2)
            cut(2)
            # a torchrun whose host was cut off waits for the other torchruns; the ranks themselves do not
            for rank in range(3):
                wait_for(tmp_path / f"rank{rank}.json", 40)
    same_interrupted(reports(tmp_path, [0, 1]), "Rank 2 (block 4 to block 5) was lost")  # no answer, or a reset
    same_interrupted(reports(tmp_path, [2]), "rank 2 works with cannot be reached")
