"""The real files, where they are at hand: counts, first labels, sums of pixels."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from auqadmm.paper.data import DataError, by_class, cifar10, fetch, load, locate, mnist, svhn
from auqadmm.paper.data.fetch import DATA_SETS

BESIDE = Path(__file__).parents[2].parent / "shared" / "data"


def root(name: str) -> Path:
    """The folder of a data set in `$AUQADMM_DATA` or beside the repository; without either the test is skipped."""
    beside = None if os.environ.get("AUQADMM_DATA") or not BESIDE.is_dir() else BESIDE
    try:
        return locate(name, beside, download=False)
    except DataError as error:
        pytest.skip(str(error))


def test_published_checksums_are_those_of_the_files():
    folder = root("mnist")
    for source in DATA_SETS["mnist"].train + DATA_SETS["mnist"].test:
        if not (folder / source.file).exists():
            pytest.skip(f"{folder} holds no {source.file}")
        content = (folder / source.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (source.size, source.sha256)


def total(images) -> int:
    return int(images.X.sum(dtype=np.int64))


def test_mnist():
    train, test = mnist(root("mnist")), mnist(root("mnist"), train=False)
    assert (train.X.shape, test.X.shape) == ((60_000, 784), (10_000, 784))
    assert train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.y[:5].tolist() == [7, 2, 1, 0, 4]
    # mean and deviation as everybody quotes them for pixels in [0, 1]: 0.1307, 0.3081
    assert abs(train.X.mean() / 255 - 0.1307) < 1e-4
    assert (total(train), total(test)) == (1_567_298_545, 264_923_200)
    assert all(len(y) == 2000 for _, y in by_class(train.X, train.y, 2000))


# These two are subsets where they lie beside the repository, complete where they were downloaded.
def test_cifar10():
    train = cifar10(root("cifar10"))
    assert train.X.shape[1] == 3072
    assert train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    # the first image, a frog: its first pixels, red plane
    assert train.X[0, :4].tolist() == [59, 43, 50, 68]
    assert len(train.y) in (18_000, 50_000)
    if len(train.y) == 18_000:
        assert total(train) == 6_897_683_660
        assert np.bincount(train.y).tolist() == [5000] * 2 + [1000] * 8


def test_svhn():
    train = svhn(root("svhn"))
    assert train.y[:5].tolist() == [1, 9, 2, 3, 2]
    assert len(train.y) in (17_000, 73_257)
    if len(train.y) == 17_000:
        assert total(train) == 6_045_654_453
        assert np.bincount(train.y).tolist() == [4500] * 2 + [1000] * 8


# ---------------------------------------------------------------------- the same files, spoilt, and downloaded
SPOILT = {
    "truncated": lambda data: data[: len(data) // 3],
    "nearly whole": lambda data: data[:-1],
    "empty": lambda data: b"",
    "too long": lambda data: data + b"more",
    "a page": lambda data: b"<!DOCTYPE html><html>Not found</html>",
    "ones": lambda data: b"\xff" * len(data),
    "reversed": lambda data: data[::-1],
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "t10k-images-idx3-ubyte.gz"),
        ("mnist", "t10k-labels-idx1-ubyte.gz"),
        ("cifar10", "cifar-10-batches-bin/test_batch.bin"),
        ("svhn", "test_32x32.mat"),
    ],
)
def test_a_spoilt_file_is_one_sentence(tmp_path, name, file, how):
    folder = root(name)
    shutil.copytree(folder, tmp_path / name, ignore=lambda _, names: [n for n in names if "train" in n or "data_" in n])
    path = tmp_path / name / file
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(SPOILT[how](data))
    with pytest.raises(DataError) as caught:
        load(name, tmp_path, train=False)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mnist_under_its_published_checksums(site, tmp_path, monkeypatch):
    """The real files from a server of our own: what a download from the real address would give."""
    folder, mnist_set = root("mnist"), DATA_SETS["mnist"]
    monkeypatch.delenv("AUQADMM_DATA", raising=False)
    monkeypatch.setattr(fetch, "user_cache", lambda: tmp_path)
    for source in mnist_set.test:
        if not (folder / source.file).exists():
            pytest.skip(f"{folder} holds no {source.file}")
        site.pages[f"/{source.file}"] = (folder / source.file).read_bytes()
    moved = tuple(replace(source, url=f"{site.address}/{source.file}") for source in mnist_set.test)
    monkeypatch.setitem(fetch.DATA_SETS, "mnist", replace(mnist_set, test=moved))
    assert len(load("mnist", train=False).y) == 10_000
    with pytest.raises(DataError, match="may not be downloaded"):
        load("mnist", download=False)
