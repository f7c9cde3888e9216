"""Resume equals not stopping: the same bits, whatever the method, the loss and the local solver."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import auqadmm as aq
from auqadmm.blocks import single_precision
from auqadmm.checkpoint.codec import leaves
from auqadmm.checkpoint.settings import RunCheckpoints
from auqadmm.local import mixed
from auqadmm.methods.auq_lr import method as lowrank
from auqadmm.metrics.lowrank import Kronecker
from auqadmm.states import REGISTRY
from tests.core.checkpoints import PROBLEMS, TIGHT, TOTALS, assert_same, names, no_waiting, rows
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks

__all__ = ["no_waiting"]  # a fixture

METHODS = {
    "c-admm": aq.methods.C(relaxation=1.6),
    "rb-admm": aq.methods.RB(),
    "ac-admm": aq.methods.AC(),
    "uq-admm": aq.methods.UQ(),
    "auq-admm": aq.methods.AUQ(every=2),
    "auq-admm global": aq.methods.AUQ(normalize="global"),
    "auq-lr": aq.methods.AUQLR(),
    "auq-lr rank 2": aq.methods.AUQLR(rank=2, memory=3, refresh=(2, 5, 9), skip=0.0),
    "auq-lr steps": aq.methods.AUQLR(local=False),
    "lbfgs": aq.baselines.LBFGS(history=4),
    "lbfgs-w": aq.baselines.PreconditionedLBFGS(),
    "owl-qn": aq.baselines.OWLQN(),
    "fista": aq.baselines.FISTA(),
}
LENGTH = 18


@cache
def problem(name):
    return PROBLEMS[name]()


@cache
def whole(model, method):
    return aq.solve(problem(model), METHODS[method], max_iter=LENGTH, **TIGHT)


def resumed(folder, model, method, stops, **options):
    """A run that was stopped after each of `stops` iterations."""
    options = {"max_iter": LENGTH, **TIGHT, **options}
    keep = aq.Checkpoint(folder, every=5)
    for stop in stops:
        aq.solve(problem(model), METHODS[method], checkpoint=keep, **{**options, "max_iter": stop})
    return aq.solve(problem(model), METHODS[method], checkpoint=keep, **options)


@pytest.mark.thin(8)
@pytest.mark.parametrize("model", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_resume_equals_not_stopping(tmp_path, model, method):
    result = resumed(tmp_path, model, method, [1, 6, 7])
    assert_same(result, whole(model, method))
    assert len(names(tmp_path)) <= 2


@settings(max_examples=12)
@given(
    st.sampled_from(sorted(METHODS)),
    st.sampled_from(["least squares", "svm", "image"]),
    st.lists(st.integers(0, LENGTH), max_size=4).map(sorted),
)
def test_stopped_at_any_iterations(tmp_path_factory, method, model, stops):
    folder = tmp_path_factory.mktemp("run")
    assert_same(resumed(folder, model, method, stops), whole(model, method))


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "local", ["newton-cg", "lbfgs", "direct", aq.local.Released(calls=3), aq.local.NewtonCG(tol=1e-10)]
)
@pytest.mark.parametrize("method", ["rb-admm", "auq-admm", "auq-lr"])
def test_every_local_solver(tmp_path, local, method):
    options = {"local": local, "max_iter": 15, **TIGHT}
    plain = aq.solve(least_squares(), method, **options)
    aq.solve(least_squares(), method, checkpoint=tmp_path, **{**options, "max_iter": 4})
    assert_same(aq.solve(least_squares(), method, checkpoint=tmp_path, **options), plain)


def test_a_local_solver_that_is_two(tmp_path, monkeypatch):
    """L-BFGS with its memory and Newton-CG, each for its blocks."""
    for name, value in (("SMALL_PRODUCT", 0), ("LEAST_PAIRS", 1), ("PAIRS_ROOM", 1)):
        monkeypatch.setattr(mixed, name, value)
    problem = multinomial([class_blocks()[0], *class_blocks(per_block=4)[1:]])
    plain = aq.solve(problem, "c-admm", max_iter=15, **TIGHT)
    aq.solve(problem, "c-admm", checkpoint=tmp_path, max_iter=4, **TIGHT)
    assert_same(aq.solve(problem, "c-admm", checkpoint=tmp_path, max_iter=15, **TIGHT), plain)


@pytest.mark.parametrize("regularizer", [aq.ElasticNet(0.05, 0.1), aq.GroupLasso(0.1), aq.NonNegative()], ids=str)
@pytest.mark.parametrize("method", ["ac-admm", "auq-lr", "owl-qn", "fista"])
def test_regularizers_with_kinks(tmp_path, regularizer, method):
    if method == "owl-qn" and not isinstance(regularizer, aq.ElasticNet):
        return
    model = least_squares(regularizer=regularizer)
    plain = aq.solve(model, method, max_iter=15, **TIGHT)
    aq.solve(model, method, max_iter=5, checkpoint=tmp_path, **TIGHT)
    assert_same(aq.solve(model, method, max_iter=15, checkpoint=tmp_path, **TIGHT), plain)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"start": "random", "seed": 3},
        {"stop": "certificate"},
        {"stop": "residuals", "evaluate_every": 3},
        {"evaluate_every": 0},
        {"warm_start": np.full((5, 3), 0.1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["ac-admm", "auq-admm", "auq-lr", "lbfgs-w", "fista"])
def test_every_setting(tmp_path, method, options):
    options = {**TIGHT, **options}
    plain = aq.solve(multinomial(), method, max_iter=12, **options)
    aq.solve(multinomial(), method, max_iter=5, checkpoint=tmp_path, **options)
    assert_same(aq.solve(multinomial(), method, max_iter=12, checkpoint=tmp_path, **options), plain)


@pytest.mark.campaign
def test_the_matrix_meets_every_kind_of_state(monkeypatch, tmp_path):
    """Low-rank weights with cosines and joint ones; a class of the registry that no run saves would be a dead entry."""
    seen: set[str] = set()

    def visit(value):
        name = REGISTRY.name_of(value)
        seen.update([name] if name else [])
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
        for x in (*inside, *(vars(value).values() if name else ())):
            visit(x)

    def look(event):
        blocks = event.state.blocks
        visit((blocks, event.state.shared))
        for name, x in leaves({} if blocks is None else {**vars(blocks), "solver_memory": None}):
            if name not in REGISTRY.replicated:
                assert x.shape[0] == event.state.shared.setup.blocks, f"{event.method}: {name} is not per block"

    for model in ("least squares", "image", "weighted", "multinomial"):
        for method in METHODS.values():
            aq.solve(problem(model), method, max_iter=4, callbacks=[look])
    aq.solve(problem("multinomial"), "c-admm", local="lbfgs", max_iter=4, callbacks=[look])
    years = [(X + 2000, y) for X, y in regression_blocks()]  # columns of its own
    aq.solve(aq.Problem(aq.Huber(), aq.L2(0.1), years, intercept=True), "lbfgs-w", max_iter=4, callbacks=[look])
    save = RunCheckpoints.save
    monkeypatch.setattr(
        RunCheckpoints,
        "save",
        lambda self, saved, setup: (visit((saved.gate, saved.certificate)), save(self, saved, setup)),
    )
    aq.solve(problem("multinomial"), "auq-lr", checkpoint=tmp_path)
    aq.solve(problem("multinomial"), "newton", callbacks=[look])
    signs = [(X, np.where(y > 0, 1, -1)) for X, y in regression_blocks()]
    aq.solve(aq.Problem(aq.Logistic(), aq.L1(0.5), signs), aq.methods.Newton(round_cost=2), callbacks=[look])
    X, y = load_digits(return_X_y=True)
    turns = aq.Problem(aq.Multinomial(), aq.L2(0.01), [(X[y == c] / 16, y[y == c]) for c in range(10)])
    assert aq.solve(turns, callbacks=[look], round_cost=4000).choice.changes
    with monkeypatch.context() as patched:
        patched.setattr(lowrank, "COUPLING_PRODUCTS", 1e6)  # classes are coupled, however small the data
        aq.solve(turns, "auq-lr", max_iter=2, callbacks=[look])
    monkeypatch.setattr(single_precision, "SMALL_DATA", 0)
    monkeypatch.setattr(mixed, "SMALL_PRODUCT", 0)
    monkeypatch.setattr(mixed, "LEAST_PAIRS", 1)
    monkeypatch.setattr(mixed, "PAIRS_ROOM", 1)
    aq.solve(problem("multinomial"), "c-admm", max_iter=4, callbacks=[look])
    aq.solve(problem("multinomial"), "auq-lr", max_iter=4, callbacks=[look])
    assert seen == set(REGISTRY.classes)
    assert isinstance(whole("image", "auq-lr").weights.F, Kronecker)
    assert whole("custom", "auq-lr").weights.joint


# ------------------------------------------------------------------ ends
@pytest.mark.parametrize("method", ["auq-lr", "rb-admm", "fista"])
def test_a_finished_run_returns_at_once_with_the_same_result(tmp_path, method):
    calls = []
    options = {"max_iter": 500, "checkpoint": tmp_path, "callbacks": [lambda event: bool(calls.append(event))]}
    first = aq.solve(multinomial(), method, **options)
    assert first.status == "converged"
    before, done = names(tmp_path), len(calls)
    again = aq.solve(multinomial(), method, **options)
    assert_same(first, again)
    assert first.message == again.message
    assert len(calls) == done, "no iteration was made again"
    assert names(tmp_path) == before, "nothing was written again"


def test_a_run_at_its_limit_returns_at_once_and_goes_on_with_a_larger_one(tmp_path):
    first = aq.solve(multinomial(), "c-admm", max_iter=7, checkpoint=tmp_path)
    before = names(tmp_path)
    again = aq.solve(multinomial(), "c-admm", max_iter=7, checkpoint=tmp_path)
    assert_same(first, again)
    assert str(tmp_path) in first.message
    assert names(tmp_path) == before
    assert aq.solve(multinomial(), "c-admm", max_iter=9, checkpoint=tmp_path).n_iter == 9


def test_tighter_tolerances_go_on_and_a_diverged_run_does_not(tmp_path):
    loose = aq.solve(multinomial(), "auq-lr", checkpoint=tmp_path / "a", certificate_tol=1e-3, abs_tol=1e-2)
    tight = aq.solve(multinomial(), "auq-lr", checkpoint=tmp_path / "a", certificate_tol=1e-9, abs_tol=1e-8)
    assert loose.status == tight.status == "converged"
    assert tight.n_iter > loose.n_iter
    *before, last = rows(loose)
    assert rows(tight)[: loose.n_iter - 1] == before
    assert {**rows(tight)[loose.n_iter - 1], **{name: last[name] for name in TOTALS}} == last
    assert tight.history[loose.n_iter].rounds_verdict >= last["rounds_verdict"], "nothing that was asked is forgotten"

    def explode(u, X, y):
        z = X @ u
        return torch.exp(torch.where(y > 50, 1e4 * z * z, 0.0)) + 0.5 * (z - y) ** 2

    blocks = regression_blocks()
    X, y = blocks[2]
    blocks[2] = (X, np.where(np.arange(len(y)) == 0, 100.0, y))
    bad = aq.Problem(aq.CustomLoss(explode), aq.L2(1.0), blocks)
    runs = [aq.solve(bad, "c-admm", start="random", max_iter=5, checkpoint=tmp_path / "b") for _ in range(2)]
    assert runs[0].status == runs[1].status == "diverged"
    assert runs[0].message == runs[1].message


def test_a_callback_or_a_time_limit_stops_and_the_run_goes_on(tmp_path):
    plain = aq.solve(least_squares(), "ac-admm", max_iter=30, **TIGHT)
    stopped = aq.solve(
        least_squares(),
        "ac-admm",
        max_iter=30,
        checkpoint=tmp_path,
        callbacks=[lambda e: e.row.iteration == 8],
        **TIGHT,
    )
    assert stopped.status == "interrupted"
    timed = aq.solve(least_squares(), "ac-admm", max_iter=30, checkpoint=tmp_path, time_limit=1e-9, **TIGHT)
    assert timed.status == "time_limit"
    assert timed.n_iter == 8
    assert_same(aq.solve(least_squares(), "ac-admm", max_iter=30, checkpoint=tmp_path, **TIGHT), plain)


def test_seconds_and_counters_go_on(tmp_path):
    first = aq.solve(multinomial(), "auq-lr", max_iter=3, checkpoint=tmp_path, **TIGHT)
    second = aq.solve(multinomial(), "auq-lr", max_iter=8, checkpoint=tmp_path, **TIGHT)
    seconds = second.history.column("seconds")
    assert seconds == sorted(seconds)
    assert seconds[:3] == first.history.column("seconds")


# ------------------------------------------------------------------ settings and files
def test_every_and_keep(tmp_path):
    seen = []
    keep = aq.Checkpoint(tmp_path, every=3, keep=3)
    aq.solve(
        least_squares(),
        "auq-lr",
        max_iter=11,
        checkpoint=keep,
        callbacks=[lambda e: seen.append(names(tmp_path))],
        **TIGHT,
    )
    assert [len(found) for found in seen] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3]
    iterations = [_about(tmp_path / name)["iteration"] for name in names(tmp_path)]
    assert iterations == [6, 9, 11]
    resumed = aq.Checkpoint(tmp_path, every=3, keep=2)
    aq.solve(least_squares(), "auq-lr", max_iter=13, checkpoint=resumed, **TIGHT)
    assert [_about(tmp_path / name)["iteration"] for name in names(tmp_path)] == [12, 13]


def _about(folder):
    return json.loads((folder / "checkpoint.json").read_text())["content"]


def test_the_files_are_safetensors_and_json_and_say_what_they_are(tmp_path):
    from safetensors.torch import load_file

    aq.solve(multinomial(), "auq-lr", max_iter=4, checkpoint=tmp_path)
    folder = tmp_path / names(tmp_path)[-1]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    about = _about(folder)
    assert about["iteration"] == 4
    assert about["status"] == "max_iter"
    assert about["settings"]["loss"] == "Multinomial(reduction='mean')"
    assert about["settings"]["method"].startswith("AUQLR(rank='auto'")
    assert set(about["versions"]) == {"auqadmm", "numpy", "python", "torch", "safetensors"}
    assert len(about["blocks"]) == 3
    arrays = load_file(folder / "blocks-00000.safetensors")
    assert arrays["blocks.u"].shape == (3, 5, 3)
    assert load_file(folder / "shared.safetensors")["run.shared.v"].shape == (5, 3)


def test_resume_true_needs_a_checkpoint_and_false_an_empty_folder(tmp_path):
    with pytest.raises(aq.CheckpointError, match="no checkpoint to resume from"):
        aq.solve(least_squares(), "auq-lr", checkpoint=aq.Checkpoint(tmp_path / "new", resume=True))
    assert not (tmp_path / "new").exists()
    with pytest.raises(aq.CheckpointError, match="no checkpoint to resume from"):
        aq.solve(least_squares(), "auq-lr", checkpoint=aq.Checkpoint(tmp_path, resume=True))
    aq.solve(least_squares(), "auq-lr", max_iter=3, checkpoint=aq.Checkpoint(tmp_path, resume=False), **TIGHT)
    before = names(tmp_path)
    with pytest.raises(aq.CheckpointError, match="holds checkpoints already and resume is False"):
        aq.solve(least_squares(), "auq-lr", max_iter=3, checkpoint=aq.Checkpoint(tmp_path, resume=False), **TIGHT)
    assert names(tmp_path) == before
    onward = aq.Checkpoint(tmp_path, resume=True)
    assert aq.solve(least_squares(), "auq-lr", max_iter=5, checkpoint=onward, **TIGHT).n_iter == 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: aq.Checkpoint(""), "checkpoint must be a folder's path"),
        (lambda: aq.Checkpoint(3), "checkpoint must be a folder's path"),
        (lambda: aq.Checkpoint("x", every=0), "every must be a whole number ≥ 1"),
        (lambda: aq.Checkpoint("x", keep=0), "keep must be a whole number ≥ 1"),
        (lambda: aq.Checkpoint("x", resume="yes"), "resume must be True, False or 'auto'"),
        (lambda: aq.solve(least_squares(), "auq-lr", checkpoint=True), "checkpoint must be a folder's path"),
    ],
)
def test_wrong_settings_get_one_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()
