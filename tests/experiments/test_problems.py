"""From specs to problems."""

import numpy as np
import pytest
import scipy.sparse

from auqadmm.paper import problems
from auqadmm.paper.data import DataError, Images
from auqadmm.paper.spec import ProblemSpec


@pytest.fixture
def folder(tmp_path, rng):
    """A pack of 60 mostly black colour images of three classes."""
    X = (rng.integers(0, 256, (60, 3 * 4 * 5)) * (rng.random((60, 60)) < 0.2)).astype(np.uint8)
    images = Images(X, np.arange(60) % 3, (3, 4, 5), "svhn")
    problems.write_pack(tmp_path / "svhn.npz", images, {0: None, 1: None, 2: None})
    return tmp_path, images


def test_a_pack_gives_back_what_was_put_in(folder):
    path, images = folder
    found = problems.read_pack(path / "svhn.npz", "svhn")
    assert np.array_equal(found.X, images.X)
    assert np.array_equal(found.y, images.y)
    assert found.shape == images.shape
    assert found.white == 255


def test_a_pack_that_is_none_is_told_in_one_sentence(tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"no")
    with pytest.raises(DataError, match=r"mnist.npz: is no pack of images"):
        problems.read_pack(tmp_path / "mnist.npz", "mnist")


def test_pixels_in_unit_interval_or_standardised_per_colour(folder):
    path, _ = folder
    unit = problems.make_problem(ProblemSpec("svhn", "multinomial", classes=(0, 1, 2)), path)
    assert max(b.X.max() for b in unit.blocks) <= 1.0
    spec = ProblemSpec("svhn", "multinomial", classes=(0, 1, 2), pixels="zscored")
    X = np.concatenate([b.X for b in problems.make_problem(spec, path).blocks]).reshape(-1, 3, 20)
    assert np.allclose(X.mean((0, 2)), 0, atol=1e-12)
    assert np.allclose(X.std((0, 2)), 1, atol=1e-12)


def test_classes_are_dealt_out_evenly():
    spec = ProblemSpec("digits", "multinomial", classes=tuple(range(8)), workers=4, per_class=10)
    blocks = problems.split(problems.images("digits"), spec)
    assert [np.unique(y).tolist() for _, y in blocks] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(len(y) == 20 for _, y in blocks)
    with pytest.raises(ValueError, match="8 classes cannot be dealt out evenly to 3 workers"):
        problems.split(problems.images("digits"), ProblemSpec("digits", "svm", classes=tuple(range(8)), workers=3))


def test_sparse_where_it_pays_and_the_same_problem(folder):
    path, _ = folder
    spec = ProblemSpec("svhn", "multinomial", classes=(0, 1, 2))
    dense, sparse = (problems.make_problem(spec, path, sparse) for sparse in (False, True))
    assert scipy.sparse.issparse(sparse.blocks[0].X)
    assert np.array_equal(sparse.blocks[0].X.toarray(), dense.blocks[0].X)
    elastic = problems.make_problem(ProblemSpec("svhn", "elastic", classes=(0, 1, 2)), path, sparse=True)
    assert not scipy.sparse.issparse(elastic.blocks[0].X)


def test_models_and_reductions():
    for model in ("elastic", "multinomial", "svm"):
        classes = (0, 1) if model == "svm" else tuple(range(10))
        problem = problems.make_problem(ProblemSpec("digits", model, "sum", classes=classes))
        assert problem.loss.reduction == "sum"
        assert problem.census.columns == (10 if model == "multinomial" else 1)
    with pytest.raises(ValueError, match="no model 'x'"):
        problems.make_problem(ProblemSpec("digits", "x"))
