"""Checkpoints that cannot be used: refused with a sentence, kept as they are, and the older one used if it is sound."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time

import numpy as np
import pytest
import torch

import auqadmm as aq
from tests.core.checkpoints import TIGHT, assert_same, names, no_waiting
from tests.problems import least_squares, multinomial, regression_blocks

__all__ = ["no_waiting"]  # a fixture

RUN = {"method": "auq-lr", **TIGHT}


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of iterations 10 and 12."""
    aq.solve(multinomial(), max_iter=12, checkpoint=tmp_path / "run", **RUN)
    return tmp_path / "run"


def resume(folder, **options):
    return aq.solve(multinomial(), checkpoint=folder, **{"max_iter": 20, **RUN, **options})


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def newest(folder):
    return folder / names(folder)[-1]


def edit(folder, change):
    """Change what a manifest says, with a checksum that fits again."""
    path = newest(folder) / "checkpoint.json"
    content = json.loads(path.read_text())["content"]
    change(content)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), "content": content}))


FILES = [
    "checkpoint.json",
    "history.json",
    "shared.json",
    "shared.safetensors",
    "blocks-00000.json",
    "blocks-00000.safetensors",
]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def link(path):
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def directory(path):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "truncated": truncate,
    "flipped": flip,
    "missing": os.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "link": link,
    "pipe": pipe,
    "folder": directory,
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.thin(3)
def test_a_damaged_checkpoint_is_refused_kept_and_the_older_one_used(folder, file, damage):
    bad = newest(folder)
    DAMAGE[damage](bad / file)
    before = contents(bad) if damage != "pipe" else None
    result = resume(folder)
    assert_same(result, aq.solve(multinomial(), max_iter=20, **RUN))
    assert f"{bad.name} refused" in result.message
    assert file in result.message
    assert str(folder) in result.message
    assert bad.is_dir(), "what was refused is still there"
    assert before is None or contents(bad) == before
    again = resume(folder, max_iter=25)
    assert "refused" not in again.message, "newer ones are sound"
    assert again.n_iter == len(again.history)
    assert bad.is_dir()


def test_all_damaged_is_an_error_and_nothing_is_touched(folder):
    for name in names(folder):
        flip(folder / name / "shared.safetensors")
    before = contents(folder)
    started = []
    words = r"this run can go on from.*000003, checkpoint-000002 refused: shared\.safetensors is damaged"
    with pytest.raises(aq.CheckpointError, match=words):
        resume(folder, callbacks=[started.append])
    assert not started
    assert contents(folder) == before


MISMATCHES = {
    "method": (lambda folder: resume(folder, method="auq-admm"), r"its method is AUQLR\(.*, here AUQ\("),
    "parameter": (
        lambda folder: resume(folder, method=aq.methods.AUQLR(rank=3)),
        r"its method is AUQLR\(rank='auto'.*here AUQLR\(rank=3",
    ),
    "local": (lambda folder: resume(folder, local=aq.local.NewtonCG(max_cg=3)), "its local is .*Mixed"),
    "dtype": (lambda folder: resume(folder, dtype="float32"), "its dtype is torch.float64, here torch.float32"),
    "seed": (lambda folder: resume(folder, seed=1), "its seed is 0, here 1"),
    "start": (lambda folder: resume(folder, start="random"), "its start is 'zeros', here 'random'"),
    "stop": (lambda folder: resume(folder, stop="residuals"), "its stop is 'certificate', here 'residuals'"),
    "warm": (lambda folder: resume(folder, warm_start=np.ones((5, 3))), "its warm_start is None, here WarmStart"),
    "evaluate": (lambda folder: resume(folder, evaluate_every=2), "its evaluate_every is 0, here 2"),
    "regularizer": (
        lambda folder: aq.solve(multinomial(regularizer=aq.L2(0.2)), checkpoint=folder, **RUN),
        r"its regularizer is L2\(strength=0.1\), here L2\(strength=0.2\)",
    ),
    "reduction": (
        lambda folder: aq.solve(multinomial(reduction="sum"), checkpoint=folder, **RUN),
        r"its loss is Multinomial\(reduction='mean'\), here",
    ),
    "shape": (lambda folder: aq.solve(least_squares(), checkpoint=folder, **RUN), "its features is 5, here 6"),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("what", MISMATCHES)
def test_another_run_is_refused_before_anything_is_computed(folder, what):
    before = contents(folder)
    act, words = MISMATCHES[what]
    with pytest.raises(aq.CheckpointError, match=words):
        act(folder)
    assert contents(folder) == before


def _with(blocks, j, change):
    out = [tuple(np.array(x) for x in block) for block in blocks]
    change(*out[j])
    return out


@pytest.mark.parametrize("sparse", [False, True])
def test_other_data_are_noticed_and_the_block_is_named(tmp_path, sparse):
    import scipy.sparse

    def problem(blocks):
        wrap = scipy.sparse.csr_matrix if sparse else np.asarray
        return aq.Problem(aq.LeastSquares(), aq.L2(0.1), [(wrap(X), y, *rest) for X, y, *rest in blocks])

    blocks = regression_blocks()
    aq.solve(problem(blocks), "c-admm", max_iter=3, checkpoint=tmp_path)

    def nudge(X, y):
        X[-1, -1] = np.nextafter(X[-1, -1], np.inf)

    def other_target(X, y):
        y[0] += 1

    for change in (nudge, other_target):
        with pytest.raises(aq.CheckpointError, match="other data: block 2 holds other rows here"):
            aq.solve(problem(_with(blocks, 2, change)), "c-admm", max_iter=3, checkpoint=tmp_path)
    weighted = [blocks[0], (*blocks[1], np.full(9, 2.0)), *blocks[2:]]
    with pytest.raises(aq.CheckpointError, match="other data: block 1 holds other rows here"):
        aq.solve(problem(weighted), "c-admm", max_iter=3, checkpoint=tmp_path)
    with pytest.raises(aq.CheckpointError, match=r"other data: 2 blocks \(0, …\) hold other rows here"):
        aq.solve(problem([blocks[1], blocks[0], *blocks[2:]]), "c-admm", max_iter=3, checkpoint=tmp_path)
    with pytest.raises(aq.CheckpointError, match="other data: 4 blocks, here 3"):
        aq.solve(problem(blocks[:3]), "c-admm", max_iter=3, checkpoint=tmp_path)


def test_functions_of_the_same_name_are_told_apart_by_their_values(tmp_path):
    def problem(power, strength):
        loss = aq.CustomLoss(lambda u, X, y: (X @ u - y) ** 2 + 0.01 * (X @ u) ** power)
        g = aq.CustomRegularizer(lambda v: strength * v.square().sum() / 2, lambda s, K: s / (K + strength))
        return aq.Problem(loss, g, regression_blocks(sizes=(9, 9)))

    aq.solve(problem(2, 1.0), "c-admm", max_iter=3, checkpoint=tmp_path)
    for other in (problem(4, 1.0), problem(2, 2.0)):
        with pytest.raises(aq.CheckpointError, match="another problem: loss or regularizer have other values here"):
            aq.solve(other, "c-admm", max_iter=3, checkpoint=tmp_path)
    assert aq.solve(problem(2, 1.0), "c-admm", max_iter=5, checkpoint=tmp_path).n_iter == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(version=2), "format version 2, and this library reads 1"),
        (lambda c: c.update(format="something"), "is not that of an auqadmm checkpoint"),
        (lambda c: c["versions"].update(auqadmm="99.1"), "was written by auqadmm 99.1, newer than this"),
        (lambda c: c.update(settings=[]), "does not say which run"),
        (lambda c: c.pop("probes"), "does not say which problem"),
        (
            lambda c: c["files"].update({"../../evil.json": {"size": 1, "sha256": ""}}),
            "does not belong to a checkpoint",
        ),
        (lambda c: c["files"].update({"/etc/passwd": {"size": 1, "sha256": ""}}), "does not belong to a checkpoint"),
        (lambda c: c["files"]["shared.json"].update(size=2**60), "larger than the memory of this machine"),
        (lambda c: c["files"]["shared.json"].update(size=-1), "does not belong to a checkpoint"),
        (lambda c: c["files"].pop("shared.json"), "does not name all files"),
        (lambda c: c["files"].pop("blocks-00000.json"), "files of blocks are not complete"),
        (lambda c: c.pop("run"), "does not say which run"),
    ],
)
def test_what_a_manifest_may_not_say(folder, change, words):
    shutil.rmtree(folder / names(folder)[0])
    edit(folder, change)
    before = contents(folder)
    with pytest.raises(aq.CheckpointError, match=words):
        resume(folder)
    assert contents(folder) == before


def test_a_folder_of_another_problem_next_to_a_sound_one(folder):
    """The newest belongs to something else, by whatever accident: it stays, and the older one serves."""
    edit(folder, lambda c: c["settings"].update(seed="7"))
    bad = newest(folder)
    result = resume(folder, max_iter=40)
    assert "its seed is 7, here 0" in result.message
    assert bad.is_dir()


def test_other_files_are_left_alone(folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-000003x").mkdir()
    first = folder / names(folder)[1]
    (first / "notes.txt").write_text("mine too")
    for k in (30, 40, 50):
        resume(folder, max_iter=k)
    assert (folder / "notes.txt").read_text() == "mine"
    assert {"checkpoint-1", "checkpoint-000003x"} <= set(names(folder))
    assert [p.read_text() for p in folder.rglob("notes.txt") if p.parent != folder] == ["mine too"]


def test_a_link_in_place_of_a_checkpoint_is_not_followed(folder, tmp_path):
    bad = newest(folder)
    bad.rename(tmp_path / "elsewhere")
    bad.symlink_to(tmp_path / "elsewhere")
    result = resume(folder)
    assert f"{bad.name} refused: it is not a folder" in result.message
    assert (tmp_path / "elsewhere" / "shared.json").is_file()


def test_the_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert resume(tmp_path / "link", max_iter=15).n_iter == 15


def test_unfinished_folders_of_killed_processes_are_swept(folder):
    dead = folder / f".checkpoint-000009.{'a' * 32}.part"
    dead.mkdir()
    (dead / "shared.json").write_text("half")
    resume(folder)
    assert not dead.exists()


def test_a_sparse_giant_is_refused_without_reading_it(folder):
    shutil.rmtree(folder / names(folder)[0])
    with open(newest(folder) / "checkpoint.json", "ab") as file:
        file.truncate(2**36)
    began = time.perf_counter()
    with pytest.raises(aq.CheckpointError, match=r"checkpoint\.json is too large"):
        resume(folder)
    assert time.perf_counter() - began < 5


def test_a_finished_run_of_another_torch_version_is_accepted(folder):
    edit(folder, lambda c: c["versions"].update(torch="1.0"))
    assert "refused" not in resume(folder).message
    assert torch.__version__ != "1.0"
