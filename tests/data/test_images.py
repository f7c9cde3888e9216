"""Readers on files made here: what is read, and one clear sentence for each way a file can be wrong."""

from __future__ import annotations

import gzip
import pickle
import struct
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from scipy.io import savemat

from auqadmm.paper.data import DataError, cifar10, digits, mnist, svhn

N = 12


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, pixels, labels, zipped=True, part="train"):
    for name, array in ((f"{part}-images-idx3-ubyte", pixels), (f"{part}-labels-idx1-ubyte", labels)):
        data = idx(array)
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(data) if zipped else data)


@pytest.fixture
def grey(rng):
    return rng.integers(0, 256, (N, 5, 4), dtype=np.uint8), rng.integers(0, 10, N, dtype=np.uint8)


@pytest.fixture
def colour(rng):
    return rng.integers(0, 256, (N, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, N, dtype=np.uint8)


def records(pixels, labels) -> bytes:
    return np.hstack([labels[:, None], pixels.reshape(len(labels), -1)]).tobytes()


def write_svhn(folder, pixels, digits, part="train", **changes):
    y = np.where(digits == 0, 10, digits)[:, None].astype(np.uint8)
    held = {"X": pixels.transpose(2, 3, 1, 0), "y": y} | changes
    path = folder / f"{part}_32x32.mat"
    savemat(path, {k: v for k, v in held.items() if v is not None}, do_compression=True)
    return path


# ---------------------------------------------------------------------- what is read
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_mnist(tmp_path, grey, zipped, train):
    write_mnist(tmp_path, *grey, zipped, "train" if train else "t10k")
    images = mnist(tmp_path, train)
    assert (images.shape, images.name, images.X.dtype, images.y.dtype) == ((5, 4), "mnist", np.uint8, np.int64)
    assert images.X.flags.writeable
    np.testing.assert_array_equal(images.X, grey[0].reshape(N, -1))
    np.testing.assert_array_equal(images.y, grey[1])


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10(tmp_path, colour, inner):
    pixels, labels = colour
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    cuts = [0, 1, 4, 6, 11, 12]  # any number of records per file
    for k, (a, b) in enumerate(pairwise(cuts), start=1):
        (folder / f"data_batch_{k}.bin").write_bytes(records(pixels[a:b], labels[a:b]))
    (folder / "test_batch.bin").write_bytes(records(pixels[:2], labels[:2]))
    images = cifar10(tmp_path)
    assert (images.shape, images.X.dtype, images.y.dtype) == ((3, 32, 32), np.uint8, np.int64)
    np.testing.assert_array_equal(images.X, pixels.reshape(N, -1))
    np.testing.assert_array_equal(images.y, labels)
    assert len(cifar10(tmp_path, train=False).y) == 2


@pytest.mark.parametrize("count", [N, 1])
def test_svhn_has_the_row_order_of_cifar(tmp_path, colour, count):
    pixels, digits = colour[0][:count], colour[1][:count]
    write_svhn(tmp_path, pixels, digits)
    images = svhn(tmp_path)
    assert (images.shape, images.X.dtype, images.y.dtype) == ((3, 32, 32), np.uint8, np.int64)
    np.testing.assert_array_equal(images.X, pixels.reshape(count, -1))
    np.testing.assert_array_equal(images.y, digits)


def test_svhn_labels_may_be_doubles(tmp_path, colour):
    write_svhn(tmp_path, *colour, y=np.where(colour[1] == 0, 10.0, colour[1])[:, None])
    np.testing.assert_array_equal(svhn(tmp_path).y, colour[1])


def test_digits():
    images = digits()
    assert (images.X.shape, images.X.dtype, images.y.dtype) == ((1797, 64), np.uint8, np.int64)
    assert (images.shape, images.X.max(), images.white) == ((8, 8), 16, 16)
    with pytest.raises(DataError, match="no test images"):
        digits(train=False)


# ---------------------------------------------------------------------- what is wrong
def expect(reader, root, path, *words):
    with pytest.raises(DataError) as caught:
        reader(root)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_missing_files(tmp_path):
    expect(mnist, tmp_path, "train-images-idx3-ubyte", ".gz")
    expect(cifar10, tmp_path, "data_batch_1.bin", "binary version")
    expect(svhn, tmp_path, "train_32x32.mat")
    expect(mnist, tmp_path / "nowhere", "nowhere")


def test_idx_with_another_magic(tmp_path, grey):
    write_mnist(tmp_path, grey[1], grey[1], zipped=False)
    expect(mnist, tmp_path, "train-images", "00 00 08 01", "3 dimensions")


@pytest.mark.parametrize("cut", [0, 1, 3, 7, 15])
def test_idx_that_ends_in_its_header(tmp_path, grey, cut):
    write_mnist(tmp_path, *grey, zipped=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:cut])
    expect(mnist, tmp_path, path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("change", "word"), [(-7, "only 233"), (+1, "more")])
def test_idx_of_another_length_than_announced(tmp_path, grey, zipped, change, word):
    write_mnist(tmp_path, *grey, zipped)
    data = idx(grey[0])
    data = data[:change] if change < 0 else data + bytes(change)
    path = tmp_path / ("train-images-idx3-ubyte" + ".gz" * zipped)
    path.write_bytes(gzip.compress(data) if zipped else data)
    expect(mnist, tmp_path, path, "240 bytes", word)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_is_allocated_for_a_header_that_lies(tmp_path, grey, zipped):
    write_mnist(tmp_path, *grey, zipped)
    data = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 2**16, 2**16) + bytes(100)
    path = tmp_path / ("train-images-idx3-ubyte" + ".gz" * zipped)
    path.write_bytes(gzip.compress(data) if zipped else data)
    tracemalloc.start()
    try:
        expect(mnist, tmp_path, path, "announces")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_damaged_gzip(tmp_path, grey):
    write_mnist(tmp_path, *grey)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    expect(mnist, tmp_path, path, "truncated")
    path.write_bytes(good[:-6] + b"\xff" + good[-5:])
    expect(mnist, tmp_path, path, "cannot be read")


def test_empty_and_unequal(tmp_path, grey):
    pixels, labels = grey
    write_mnist(tmp_path, pixels[:0], labels[:0])
    expect(mnist, tmp_path, "train-images", "empty")
    write_mnist(tmp_path, pixels, labels[1:])
    expect(mnist, tmp_path, "train-labels", "11 labels", "12 images")
    write_mnist(tmp_path, pixels, labels + np.uint8(10) * (np.arange(N) == 3))
    expect(mnist, tmp_path, "train-labels", "label 3", "0 … 9")


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "train_32x32.mat").mkdir()
    expect(svhn, tmp_path, "train_32x32.mat")


class TestCifarRefuses:
    def test_the_pickle_version(self, tmp_path):
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        (folder / "data_batch_1").write_bytes(pickle.dumps({}))
        expect(cifar10, folder, "data_batch_1", "binary version", "runs any code")
        expect(cifar10, tmp_path, "cifar-10-batches-py", "binary version", "runs any code")

    def test_a_pickle_under_a_binary_name(self, tmp_path):
        (tmp_path / "data_batch_1.bin").write_bytes(pickle.dumps({"data": bytes(3073)}))
        expect(cifar10, tmp_path, "data_batch_1.bin", "binary version", "runs any code")

    @pytest.mark.parametrize("size", [0, 3072, 3073 * 2 - 1])
    def test_a_size_that_is_no_whole_number_of_records(self, tmp_path, size):
        (tmp_path / "data_batch_1.bin").write_bytes(bytes(size))
        expect(cifar10, tmp_path, "data_batch_1.bin", f"{size} bytes", "3073")

    def test_a_label_that_is_none(self, tmp_path, colour):
        (tmp_path / "data_batch_1.bin").write_bytes(records(colour[0], np.full(N, 11, np.uint8)))
        expect(cifar10, tmp_path, "data_batch_1.bin", "record 0", "label 11")

    def test_a_missing_batch(self, tmp_path, colour):
        (tmp_path / "data_batch_1.bin").write_bytes(records(*colour))
        expect(cifar10, tmp_path, "data_batch_2.bin")


class TestSvhnRefuses:
    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"X": None}, "no variable X"),
            ({"y": None}, "no variable y"),
            ({"X": np.zeros((32, 32, 3, N))}, "float64"),
            ({"X": np.zeros((32, 32, N), np.uint8)}, "(32, 32, 3, n)"),
            ({"y": np.ones((N + 1, 1), np.uint8)}, "13 uint8 labels"),
            ({"y": np.full((N, 1), 11, np.uint8)}, "label 0 is 11"),
            ({"y": np.full((N, 1), 1.5)}, "label 0 is 1.5"),
            ({"X": {"a": 1}}, "damaged or unusual"),
        ],
    )
    def test_other_contents(self, tmp_path, colour, changes, word):
        path = write_svhn(tmp_path, *colour, **changes)
        expect(svhn, tmp_path, path, word)

    def test_other_files(self, tmp_path, colour):
        path = write_svhn(tmp_path, *colour)
        good = path.read_bytes()
        for data, word in (
            (b"", "not a MATLAB 5 file"),
            (b"\x89HDF\r\n" + bytes(600), "HDF5"),
            (bytes(600), "not a MATLAB 5 file"),
            (good[:5000], "are left"),
            (good[:131], "truncated"),
        ):
            path.write_bytes(data)
            expect(svhn, tmp_path, path, word)

    def test_a_type_on_which_the_parser_would_end_the_process(self, tmp_path, colour):
        path = tmp_path / "train_32x32.mat"
        savemat(path, {"X": colour[0].transpose(2, 3, 1, 0), "y": colour[1][:, None]})
        data = bytearray(path.read_bytes())
        at = data.index(b"X\0\0\0") + 4  # the tag of the data follows the name
        assert data[at] == 2
        data[at] = 103
        path.write_bytes(data)
        expect(svhn, tmp_path, path, "damaged or unusual")

    @pytest.mark.parametrize("compressed", [True, False])
    def test_damage_anywhere_is_a_data_error_or_a_changed_pixel(self, tmp_path, colour, rng, compressed):
        path = tmp_path / "train_32x32.mat"
        y = np.where(colour[1] == 0, 10, colour[1])[:, None]
        savemat(path, {"X": colour[0].transpose(2, 3, 1, 0), "y": y}, do_compression=compressed)
        good = path.read_bytes()
        places = np.concatenate([rng.integers(0, 220, 60), rng.integers(0, len(good), 60)])
        for place in places:
            data = bytearray(good)
            data[place] ^= int(rng.integers(1, 256))
            path.write_bytes(data)
            with suppress(DataError):  # and no other kind of error
                assert svhn(tmp_path).X.shape == (N, 3072)
