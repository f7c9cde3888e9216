"""Where data sets are looked for, in which order, and what happens when they are nowhere."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from auqadmm.paper.data import NAMES, DataError, fetch, load, locate, user_cache
from auqadmm.paper.data.fetch import DATA_SETS
from tests.data.serving import tar_gz


def sentence(*words: str, **arguments) -> str:
    with pytest.raises(DataError) as caught:
        load(**arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message
    return message


def copy_of(name: str, to: Path) -> Path:
    shutil.copytree(locate(name), to)
    return to


@pytest.fixture
def places(published, tmp_path, monkeypatch):
    """mnist in a named folder, in $AUQADMM_DATA and in the cache."""
    cache = locate("mnist")
    for name in ("named", "variable"):
        copy_of("mnist", tmp_path / name / "mnist")
    monkeypatch.setenv("AUQADMM_DATA", str(tmp_path / "variable"))
    return tmp_path / "named", tmp_path / "variable", cache


# ---------------------------------------------------------------------- order
def test_search_order(places, site):
    named, variable, cache = places
    (named / "empty").mkdir()
    site.asked.clear()
    assert locate("mnist", named) == named / "mnist"
    assert locate("mnist", str(named / "mnist")) == named / "mnist"
    assert locate("mnist") == variable / "mnist"
    assert locate("mnist", named / "empty") == variable / "mnist"
    shutil.rmtree(variable / "mnist")
    assert locate("mnist") == locate("mnist", named / "empty") == cache
    assert site.asked == []
    shutil.rmtree(cache)
    with pytest.raises(DataError, match="not on this machine"):
        locate("mnist", named / "empty", download=False)
    assert locate("mnist") == cache
    assert len(site.asked) == 2


def test_a_folder_that_holds_a_part_decides(places):
    """A named folder with the training images only is not completed from elsewhere."""
    named, *_ = places
    assert len(load("mnist", named).y) == 12
    sentence(str(named), "t10k-images", "no such file", name="mnist", data=named, train=False)
    (named / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    sentence(str(named), "train-labels", "no such file", name="mnist", data=named)


def test_a_folder_with_another_version_of_cifar_decides(published, tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    sentence("runs any code", name="cifar10", data=tmp_path)
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"")
    sentence("unpacked", name="cifar10", data=tmp_path)


def test_folders_that_do_not_exist(places, tmp_path, monkeypatch):
    sentence(str(tmp_path / "nowhere"), "--data", "does not exist", name="mnist", data=tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    sentence("--data", "is no folder", name="mnist", data=tmp_path / "file")
    monkeypatch.setenv("AUQADMM_DATA", str(tmp_path / "gone"))
    sentence(str(tmp_path / "gone"), "AUQADMM_DATA", name="mnist")
    monkeypatch.setenv("AUQADMM_DATA", "")  # as good as none
    assert locate("mnist") == places[2]


def test_a_tilde_is_the_home_directory(places, monkeypatch):
    monkeypatch.setenv("HOME", str(places[0].parent))
    assert locate("mnist", "~/named") == places[0] / "mnist"


def test_names():
    assert set(NAMES) == {"digits", *DATA_SETS}
    assert load("digits").X.shape == (1797, 64)
    sentence("no test images", name="digits", train=False)
    sentence("'imagenet'", "mnist, cifar10, svhn", name="imagenet")
    with pytest.raises(DataError, match="comes with scikit-learn"):
        locate("digits")


# ---------------------------------------------------------------------- downloads
@pytest.mark.parametrize(("name", "shape"), [("mnist", (12, 20)), ("cifar10", (10, 3072))])
def test_a_data_set_is_downloaded_once(published, site, name, shape):
    seen = []
    images = load(name, progress=lambda *event: seen.append(event))
    assert images.X.shape == shape
    assert {file for file, *_ in seen} == {source.file for source in published[name].train}
    asked = list(site.asked)
    np.testing.assert_array_equal(load(name).X, images.X)
    np.testing.assert_array_equal(load(name, download=False).X, images.X)
    assert site.asked == asked
    assert not list(user_cache().rglob("*.part"))


def test_only_what_is_asked_for_and_missing_is_downloaded(published, site):
    load("mnist")
    assert all("train" in path for path in site.asked)
    (user_cache() / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    site.asked.clear()
    load("mnist")
    assert site.asked == ["/train-labels-idx1-ubyte.gz"]
    load("mnist", train=False)
    assert len(site.asked) == 3
    load("cifar10")
    load("cifar10", train=False)
    assert site.asked.count("/cifar-10-binary.tar.gz") == 1


def test_a_cached_file_of_another_size_is_downloaded_again(published):
    path = locate("cifar10") / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(b"")
    assert len(load("cifar10", train=False).y) == 2


def test_a_damaged_cache_says_how_to_mend_it(published):
    path = locate("mnist") / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    path.write_bytes(content[:-6] + b"\xff" + content[-5:])
    sentence(str(path), f"delete {path.parent}", "downloaded again", name="mnist")


def test_downloads_can_be_forbidden(published, site, tmp_path):
    message = sentence(str(user_cache() / "svhn"), "--data DIR", "AUQADMM_DATA", name="svhn", download=False)
    assert published["svhn"].train[0].url in message
    assert site.asked == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn"])
def test_a_failed_download_is_one_sentence_and_leaves_nothing(published, site, tmp_path, name):
    site.pages = {path: page[:-1] + b"?" for path, page in site.pages.items() if isinstance(page, bytes)}
    site.pages["/train_32x32.mat"] = b"x"
    sentence("SHA-256", site.address, "--data DIR", name=name)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_an_archive_without_the_expected_files(published, site, monkeypatch):
    members = published["cifar10"].train[0].members
    source = site.source("other.tar.gz", tar_gz({"readme": b"hello"}), members=members)
    monkeypatch.setitem(fetch.DATA_SETS, "cifar10", replace(published["cifar10"], train=(source,)))
    sentence("holds no cifar-10-batches-bin/data_batch_1.bin", "nothing was unpacked", source.url, name="cifar10")


# ---------------------------------------------------------------------- the cache of each system
@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"XDG_CACHE_HOME": "/caches"}, "/caches/auqadmm"),
        ("linux", {}, "/home/me/.cache/auqadmm"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/auqadmm"),
        ("darwin", {}, "/home/me/Library/Caches/auqadmm"),
        ("win32", {"LOCALAPPDATA": "/home/me/Local"}, "/home/me/Local/auqadmm"),
        ("win32", {}, "/home/me/AppData/Local/auqadmm"),
    ],
)
def test_user_cache(monkeypatch, platform, variables, folder):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert user_cache() == Path(folder)


def test_published_sources_are_well_formed():
    for name, data_set in DATA_SETS.items():
        for source in data_set.train + data_set.test:
            assert source.url.startswith(("https://", "http://ufldl.stanford.edu/")), name
            assert len(bytes.fromhex(source.sha256)) == 32
            assert source.size > 0
            assert source.file in source.url
