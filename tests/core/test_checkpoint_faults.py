"""What goes wrong in practice: signals, a full disk, a process that is killed. Nothing saved is lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.checkpoint import files as checkpoint_files
from tests.core.checkpoints import TIGHT, assert_same, names
from tests.engines.processes import Forked, ended, environment, wait_for
from tests.problems import least_squares, multinomial

RUN = {"method": "ac-admm", "max_iter": 30, **TIGHT}


def plain():
    return aq.solve(multinomial(), **RUN)


# ------------------------------------------------------------------ signals
@pytest.mark.parametrize("k", [1, 7, 10])
def test_sigterm_finishes_the_iteration_saves_and_says_where(tmp_path, k):
    def press(event):
        if event.row.iteration == k:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    result = aq.solve(multinomial(), checkpoint=tmp_path, callbacks=[press], **RUN)
    assert signal.getsignal(signal.SIGTERM) is before
    assert result.status == "interrupted"
    assert result.n_iter == k
    assert "Stopped by SIGTERM after" in result.message
    assert str(tmp_path) in result.message
    assert_same(aq.solve(multinomial(), checkpoint=tmp_path, **RUN), plain())


def test_sigterm_in_mid_iteration_and_at_the_start(tmp_path):
    class Terminated(aq.local.NewtonCG):
        calls = 0

        def solve(self, *args):
            Terminated.calls += 1
            if Terminated.calls in (1, 5):
                os.kill(os.getpid(), signal.SIGTERM)
            return super().solve(*args)

    options = {**RUN, "local": Terminated(), "checkpoint": tmp_path}
    first = aq.solve(multinomial(), **options)
    assert (first.status, first.n_iter) == ("interrupted", 0)
    second = aq.solve(multinomial(), **options)
    assert (second.status, second.n_iter) == ("interrupted", 4)
    assert_same(aq.solve(multinomial(), **options), plain())


def test_sigterm_is_left_alone_without_a_checkpoint_and_outside_the_main_thread(tmp_path):
    mine, seen, found = [], [], []
    old = signal.signal(signal.SIGTERM, lambda *args: mine.append(args))
    try:
        aq.solve(
            least_squares(),
            "auq-lr",
            max_iter=2,
            callbacks=[lambda e: seen.append(signal.getsignal(signal.SIGTERM)) and False],
        )
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(mine) == 1
        work = threading.Thread(
            target=lambda: found.append(aq.solve(least_squares(), "auq-lr", max_iter=3, checkpoint=tmp_path, **TIGHT))
        )
        work.start()
        work.join()
        assert found[0].n_iter == 3
        assert signal.getsignal(signal.SIGTERM) in seen
    finally:
        signal.signal(signal.SIGTERM, old)


@pytest.mark.parametrize("call", [1, 2, 9, 14])
def test_ctrl_c_inside_a_local_solve_saves_the_last_complete_iteration(tmp_path, call):
    class Interrupted(aq.local.NewtonCG):
        calls = 0

        def solve(self, *args):
            Interrupted.calls += 1
            if Interrupted.calls == call:
                raise KeyboardInterrupt
            return super().solve(*args)

    result = aq.solve(multinomial(), checkpoint=tmp_path, **{**RUN, "local": Interrupted()})
    assert result.status == "interrupted"
    assert result.n_iter == max(call - 2, 0)
    assert_same(aq.solve(multinomial(), checkpoint=tmp_path, **{**RUN, "local": Interrupted()}), plain())


@pytest.mark.thin(3)
@pytest.mark.parametrize("stage", ["mkdir", "fsync", "rename"])
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_saving(tmp_path, monkeypatch, stage, times):
    """Once: the end is saved. Twice: what was saved before stays. Either way nothing half-written is left."""
    where = Path if stage == "mkdir" else os
    real, left = getattr(where, stage), [0]

    def interrupted(*args, **kwargs):
        if left[0] > 0:
            left[0] -= 1
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    def arm(event):
        left[0] = times if event.row.iteration == 10 else left[0]

    monkeypatch.setattr(where, stage, interrupted)
    result = aq.solve(multinomial(), checkpoint=tmp_path, callbacks=[arm], **RUN)
    assert (result.status, result.n_iter) == ("interrupted", 10)
    assert all(name.startswith("checkpoint-") for name in names(tmp_path))
    monkeypatch.undo()
    assert_same(aq.solve(multinomial(), checkpoint=tmp_path, **RUN), plain())


# ------------------------------------------------------------------ full disk
def fill(folder: Path, keep: int) -> None:
    """Leave about `keep` bytes free."""
    with (folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    with (folder / "ballast").open("rb+") as file:
        file.truncate(max(0, (folder / "ballast").stat().st_size - keep))


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, timeout=20)
    except OSError as error:
        pytest.skip(f"cannot mount a small disk: {error}")
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=20)


@pytest.mark.parametrize("room", [0, 4096, 16384])
def test_a_disk_that_fills_up(small_disk, room):
    """The run goes on, its message says so, and the checkpoint before survives."""
    run = small_disk / "run"

    def act(event):
        if event.row.iteration == 15:
            fill(small_disk, room)

    result = aq.solve(multinomial(), checkpoint=run, callbacks=[act], **RUN)
    assert_same(result, plain())
    assert "The checkpoint of iteration 30 could not be written" in result.message
    assert "No space left on device" in result.message
    assert names(run) == ["checkpoint-000001", "checkpoint-000002"]
    (small_disk / "ballast").unlink()
    again = aq.solve(multinomial(), checkpoint=run, **RUN)
    assert_same(again, plain())
    assert "could not be written" not in again.message


def test_a_disk_that_is_full_for_a_while(small_disk):
    """A later checkpoint that succeeds leaves nothing to warn of."""

    def act(event):
        if event.row.iteration == 15:
            fill(small_disk, 0)
        if event.row.iteration == 25:
            (small_disk / "ballast").unlink()

    result = aq.solve(multinomial(), checkpoint=small_disk / "run", callbacks=[act], **RUN)
    assert "could not be written" not in result.message


def test_a_disk_that_is_full_from_the_start_is_refused_before_the_first_iteration(small_disk):
    fill(small_disk, 8192)
    seen = []
    with pytest.raises(
        aq.CheckpointError, match=r"No checkpoint can be written to .*No space left on device; make room"
    ):
        aq.solve(multinomial(), checkpoint=small_disk / "run", callbacks=[seen.append], **RUN)
    assert not seen


@pytest.mark.thin(3)
@pytest.mark.parametrize("file", ["history.json", "shared.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_write_that_fails_part_way(tmp_path, monkeypatch, file, code):
    """The same without a real full disk: half a file, then the error."""
    real, armed = checkpoint_files._write_file, []

    def failing(path, data):
        if armed and path.name == file:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(code, os.strerror(code))
        real(path, data)

    monkeypatch.setattr(checkpoint_files, "_write_file", failing)
    result = aq.solve(multinomial(), checkpoint=tmp_path, callbacks=[lambda e: armed.append(1) and False], **RUN)
    assert_same(result, plain())
    assert os.strerror(code) in result.message
    assert names(tmp_path) == ["checkpoint-000001"]


def test_contents_reach_the_disk_before_the_name(tmp_path, monkeypatch):
    """Every file is flushed, then its folder, then comes the rename, then the folder above is flushed."""
    events = []
    flush, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda h: (events.append(os.readlink(f"/proc/self/fd/{h}")), flush(h))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), rename(a, b))[1])
    aq.solve(least_squares(), "auq-lr", max_iter=0, checkpoint=aq.Checkpoint(tmp_path, keep=5))
    first = events[: events.index(str(tmp_path)) + 1]
    files, (part, renamed, above) = first[:-3], first[-3:]
    assert len(files) == len(list((tmp_path / "checkpoint-000001").iterdir()))
    assert all(Path(file).parent == Path(part) for file in files)
    assert (renamed, above) == ("rename", str(tmp_path))


# ------------------------------------------------------------------ kill -9
DRIVER = textwrap.dedent(
    """
    import sys, time
    import auqadmm as aq
    from auqadmm.checkpoint import files as checkpoint_files
    from tests.core.test_checkpoint_faults import RUN, multinomial

    mode, folder, out = sys.argv[1:]
    real = checkpoint_files._write_file

    def slow(path, data):  # a third of a second for each checkpoint: most of the time goes to saving
        time.sleep(0.05)
        real(path, data)

    if mode == "saving":
        checkpoint_files._write_file = slow

    def wait(event):
        print(event.row.iteration, flush=True)
        if mode == "iterating":
            time.sleep(0.05)

    keep = aq.Checkpoint(folder, every=2)
    result = aq.solve(multinomial(), checkpoint=keep, callbacks=[wait], **RUN)
    import numpy as np
    np.save(out, result.v.numpy())
    print(result.status, result.n_iter, result.history[-1].bytes, flush=True)
    """
)


@pytest.mark.thin(2)
@pytest.mark.parametrize("mode", ["saving", "iterating"])
def test_a_driver_killed_again_and_again_ends_at_the_same_answer(tmp_path, mode):
    program, where = tmp_path / "driver.py", [tmp_path / "run", tmp_path / "v.npy"]
    program.write_text(DRIVER)
    unfinished = 0
    for seconds in (0.1, 0.4, 0.9, 1.3):
        driver = Forked(program, [mode, *where], environment())
        try:
            wait_for(Path(driver.path), what=lambda said: said.read_text().count("\n") >= 1)  # it iterates
            time.sleep(seconds if mode == "saving" else 0.3 * seconds)
        finally:
            driver.send_signal(signal.SIGKILL)
            driver.communicate(timeout=60)
        unfinished += any(name.endswith(".part") for name in names(tmp_path / "run"))
    assert unfinished or mode == "iterating", "it was killed while it saved"
    assert not (tmp_path / "v.npy").exists(), "it was killed before the end"
    done = Forked(program, ["plain", *where], environment())
    said = ended(done, 120)
    assert done.returncode == 0, said
    whole = plain()
    last = said.splitlines()[-1]
    assert last == f"{whole.status} {whole.n_iter} {whole.history[-1].bytes}"
    assert (np.load(tmp_path / "v.npy") == whole.v.numpy()).all()
    assert int(said.split()[0]) > 1, "it went on, and did not begin anew"
    assert len(names(tmp_path / "run")) == 2, "what killed processes left is gone"


def test_sigterm_to_a_process_ends_it_in_order(tmp_path):
    root = Path(__file__).parents[2]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, "iterating", tmp_path / "run", tmp_path / "v.npy"]
    driver = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    driver.stdout.readline()
    driver.terminate()
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 0
    assert out.splitlines()[-1].startswith("interrupted")
    assert_same(aq.solve(multinomial(), checkpoint=tmp_path / "run", **RUN), plain())
