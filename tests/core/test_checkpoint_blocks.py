"""A run saved by one number of processes goes on with another: to rounding, and to the bit with the same number."""

from __future__ import annotations

import pytest
import torch

import auqadmm as aq
from auqadmm.blocks.shard import build_shard
from tests.core.checkpoints import PROBLEMS, assert_same, no_waiting

__all__ = ["no_waiting"]  # a fixture


class Split:
    """Several shards in one process, as an engine with several processes would hold them."""

    def __init__(self, problem, shard, sizes):
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        ranges = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        settings = (problem.loss, shard.census)
        where = (shard.dtype, shard.device)
        self.shards = [
            build_shard([problem.blocks[j] for j in r], [problem._targets[j] for j in r], *settings, r, *where)
            for r in ranges
        ]
        self.names = shard.names
        self.census = shard.census

    def agreed(self, number):
        return number

    def same(self, settings):
        return None

    def first(self, work):
        return work()

    def _parts(self, blocks):
        return [None] * len(self.shards) if blocks is None else blocks

    def _map(self, fn, blocks, shared):
        found = [fn(s, b, shared) for s, b in zip(self.shards, self._parts(blocks), strict=True)]
        return [b for b, _ in found], [sums for _, sums in found]

    def map_sum(self, fn, blocks, shared):
        new, sums = self._map(fn, blocks, shared)
        new = None if all(b is None for b in new) else new
        return new, {name: torch.stack([s[name] for s in sums]).sum(0) for name in sums[0]}

    def map_minmax(self, fn, blocks, shared):
        new, found = self._map(fn, blocks, shared)
        pairs = {name: torch.stack([f[name] for f in found]) for name in found[0]}
        return new, {name: torch.stack([x[:, 0].amin(0), x[:, 1].amax(0)]) for name, x in pairs.items()}

    def map_concat(self, fn, blocks):
        found = [fn(s, b) for s, b in zip(self.shards, self._parts(blocks), strict=True)]
        return {name: torch.cat([f[name] for f in found]) for name in found[0]}

    def peek(self, fn, blocks):
        return fn(self.shards[0], self._parts(blocks)[0])

    def gather(self, fn, blocks):
        return torch.cat([fn(s, b) for s, b in zip(self.shards, self._parts(blocks), strict=True)])

    def scatter(self, x):
        return [x[list(s.index)].to(s.device, s.dtype) for s in self.shards]

    def close(self, error=None):
        return None


def solve(problem, method, sizes, **options):
    """On as many processes as there are sizes."""
    if sizes is not None:
        options["engine"] = Split(problem, problem.shard(torch.float64, torch.device("cpu")), sizes)
    never = {"stop": "residuals", "abs_tol": 0, "rel_tol": 0, "certificate_tol": 0}
    return aq.solve(problem, method, evaluate_every=5, **never, **options)


METHODS = {
    "rb-admm": "rb-admm",
    "ac-admm": "ac-admm",
    "auq global": aq.methods.AUQ(normalize="global"),
    "auq-lr": "auq-lr",
    "lbfgs-w": "lbfgs-w",
    "fista": "fista",
}
LAYOUTS = [None, (1, 2), (2, 1), (1, 1, 1)]


@pytest.mark.thin(12)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["multinomial", "image", "custom"])
def test_another_number_of_processes_goes_on_to_rounding(tmp_path, method, model):
    problem = PROBLEMS[model]()
    local = {"local": aq.local.NewtonCG(tol=1e-12)}
    whole = solve(problem, METHODS[method], None, max_iter=12, **local)
    for k, sizes in enumerate(LAYOUTS):  # 3 iterations on each
        options = {"max_iter": 3 * (k + 1), "checkpoint": tmp_path, **local}
        result = solve(problem, METHODS[method], sizes, **options)
        assert "refused" not in result.message
        assert result.n_iter == 3 * (k + 1)
    assert torch.allclose(result.v, whole.v, rtol=1e-8, atol=1e-10)
    for name in ("bytes", "rounds_verdict"):
        assert result.history.column(name) == whole.history.column(name)
    assert result.history.column("rounds") == whole.history.column("rounds")


@pytest.mark.thin(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["least squares", "image"])
def test_the_same_number_of_processes_goes_on_to_the_bit(tmp_path, method, model):
    problem = PROBLEMS[model]()
    sizes = (1, problem.census.blocks - 1)
    whole = solve(problem, METHODS[method], sizes, max_iter=12)
    solve(problem, METHODS[method], sizes, max_iter=5, checkpoint=tmp_path)
    assert (tmp_path / "checkpoint-000002" / "blocks-00001.safetensors").is_file()
    assert_same(solve(problem, METHODS[method], sizes, max_iter=12, checkpoint=tmp_path), whole)


def test_a_solver_keeps_its_factors_on_the_same_layout_only(tmp_path):
    """Least squares, factors of matrices: counted when they are made, free when they are used again."""
    problem = PROBLEMS["least squares"]()
    whole = solve(problem, "c-admm", None, max_iter=9)
    solve(problem, "c-admm", None, max_iter=4, checkpoint=tmp_path)
    same = solve(problem, "c-admm", None, max_iter=6, checkpoint=tmp_path)
    assert same.history[-1].hvps == whole.history[5].hvps
    other = solve(problem, "c-admm", (2, 2), max_iter=9, checkpoint=tmp_path)
    assert other.history[-1].hvps > whole.history[-1].hvps
    assert torch.allclose(other.v, whole.v, rtol=1e-10, atol=1e-12)


def test_hashes_of_blocks_do_not_depend_on_their_place():
    from auqadmm.states import contents

    for name in ("weighted", "sparse", "least squares"):
        problem = PROBLEMS[name]()
        shard = problem.shard(torch.float64, torch.device("cpu"))
        whole = contents(shard, None)
        assert len({bytes(row) for row in whole.tolist()}) == shard.blocks
        apart = Split(problem, shard, [1] * shard.blocks).gather(contents, None)
        assert torch.equal(whole, apart)
