"""Readers for MNIST, CIFAR-10 and SVHN, in the files their authors publish, and the digits of scikit-learn.

    mnist     IDX files, gzip-compressed or not
    cifar10   binary records: 1 label byte, then 3072 bytes of planar RGB
    svhn      MATLAB 5 files with X (32, 32, 3, n) and y in 1 … 10, where 10 stands for the digit 0
    digits    comes with scikit-learn: 1797 images of 8×8 pixels in 0 … 16

A file that cannot be used is a `DataError`, one sentence that names the file and what is wrong with it. Sizes that a
header claims are compared with the size of the file before anything is allocated for them.

Shapes: n images; X (n, pixels), colour images plane by plane: reshape a row to `Images.shape` to view it.

Lengths in a MATLAB 5 file are checked against its size before it is parsed. Such a file is a header of 128
bytes, then one element per variable: a tag (type, bytes) and its bytes, uncompressed (miMATRIX) or deflated
(miCOMPRESSED around a miMATRIX). A matrix starts with four elements of its own: flags, dimensions, name, data. Every
one declares its length, and parsers allocate that much.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from auqadmm.errors import AuqadmmError

READ_AT_ONCE = 1 << 20  # bytes
CIFAR_FILES = {True: [f"data_batch_{k}.bin" for k in range(1, 6)], False: ["test_batch.bin"]}
COLOUR = (3, 32, 32)


class DataError(AuqadmmError, ValueError):
    """A data file is missing or cannot be used; the message names the file and says what is wrong."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: X uint8 (n, pixels), y int64 (n,), shape (h, w) or (c, h, w).

    `white` is the value of the brightest pixel: X / white lies in [0, 1].
    """

    X: np.ndarray
    y: np.ndarray
    shape: tuple[int, ...]
    name: str
    white: int = 255

    def __repr__(self) -> str:
        return f"Images({self.name!r}, {len(self.y)} of shape {self.shape})"


# ---------------------------------------------------------------------- MNIST
def mnist(root: str | os.PathLike[str], train: bool = True) -> Images:
    """MNIST from its IDX files, e.g. `train-images-idx3-ubyte.gz`, compressed or not."""
    part = "train" if train else "t10k"
    pixels = _idx(_existing(Path(root), f"{part}-images-idx3-ubyte"), dimensions=3)
    where = _existing(Path(root), f"{part}-labels-idx1-ubyte")
    labels = _idx(where, dimensions=1)
    if len(labels) != len(pixels):
        raise DataError(f"{where}: holds {len(labels)} labels, but there are {len(pixels)} images.")
    _check_labels(where, labels, "label")
    n, h, w = pixels.shape
    return Images(pixels.reshape(n, h * w), labels.astype(np.int64), (h, w), "mnist")


def _existing(root: Path, name: str) -> Path:
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{root / name}: no such file, and no {name}.gz beside it.")


def _idx(path: Path, dimensions: int) -> np.ndarray:
    """Unsigned bytes of an IDX file: 00 00 08 <dimensions>, one big-endian uint32 per dimension, then the data."""
    with _reading(path), path.open("rb") as raw:
        size = path.stat().st_size
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: BinaryIO = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
        head = _take(stream, 4 + 4 * dimensions)
        magic = bytes([0, 0, 8, dimensions])
        if head[:4] != magic:
            raise DataError(
                f"{path}: starts with the bytes {head[:4].hex(' ') or '(none)'}, not {magic.hex(' ')}; "
                f"this is no IDX file of unsigned bytes in {dimensions} dimension{'s' * (dimensions > 1)}."
            )
        if len(head) < 4 + 4 * dimensions:
            raise DataError(f"{path}: ends inside its header, after {len(head)} bytes.")
        shape = struct.unpack(f">{dimensions}I", head[4:])
        count = math.prod(shape)
        if count == 0:
            raise DataError(f"{path}: its header announces an array of shape {shape}, which is empty.")
        room = EXPANSION * size if zipped else size - len(head)
        # one byte more than declared: its absence confirms the end, and makes gzip verify its checksum
        body = _take(stream, count + 1) if count <= room else bytearray()
        available = len(body) if zipped and body else room
        if available != count:
            amount = (
                "more" if available > count else f"at most {available}" if zipped and not body else f"only {available}"
            )
            raise DataError(f"{path}: its header announces {count} bytes of data (shape {shape}), it holds {amount}.")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)  # of a bytearray, so that it is writable


def _take(stream: BinaryIO, count: int) -> bytearray:
    """Up to `count` bytes, in chunks: memory grows with the file, not with `count`."""
    taken = bytearray()
    while len(taken) < count and (part := stream.read(min(count - len(taken), READ_AT_ONCE))):
        taken += part
    return taken


# ---------------------------------------------------------------------- CIFAR-10
def cifar10(root: str | os.PathLike[str], train: bool = True) -> Images:
    """CIFAR-10 from its binary version: `data_batch_1.bin` … `data_batch_5.bin` or `test_batch.bin`.

    The files may have any number of records. The Python version is refused: it consists of pickles, and reading
    a pickle runs whatever code its author put there.
    """
    folder = Path(root)
    inner = folder / "cifar-10-batches-bin"
    folder = inner if inner.is_dir() else folder
    records = np.concatenate([_records(folder / name) for name in CIFAR_FILES[train]])
    return Images(np.ascontiguousarray(records[:, 1:]), records[:, 0].astype(np.int64), COLOUR, "cifar10")


PICKLES = (
    "is the Python version of CIFAR-10, which consists of pickles, and reading a pickle runs any code it contains; "
    "get the binary version (cifar-10-binary.tar.gz) and unpack it."
)


def _records(path: Path) -> np.ndarray:
    length = 1 + math.prod(COLOUR)
    if not path.is_file():
        for other in (path.with_suffix(""), path.parent / "cifar-10-batches-py"):
            if other.exists():
                raise DataError(f"{other}: {PICKLES}")
        raise DataError(
            f"{path}: no such file; CIFAR-10 is read from its binary version, cifar-10-binary.tar.gz unpacked."
        )
    with _reading(path):
        data = np.fromfile(path, dtype=np.uint8)
    if len(data) >= 2 and data[0] == 0x80 and data[1] <= 5 and data[-1] == ord("."):
        raise DataError(f"{path}: {PICKLES}")
    if len(data) == 0 or len(data) % length:
        raise DataError(
            f"{path}: holds {len(data)} bytes, not a positive multiple of {length} (1 label + 3072 pixels)."
        )
    records = data.reshape(-1, length)
    _check_labels(path, records[:, 0], "record")
    return records


# ---------------------------------------------------------------------- SVHN
def svhn(root: str | os.PathLike[str], train: bool = True) -> Images:
    """SVHN, cropped digits, from `train_32x32.mat` or `test_32x32.mat`; label 10 of the files is the digit 0."""
    path = Path(root) / f"{'train' if train else 'test'}_32x32.mat"
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    X, y = _load_mat(path)
    X = X[..., None] if X.ndim == 3 else X  # MATLAB drops the last dimension of a single image
    if X.dtype != np.uint8 or X.ndim != 4 or X.shape[:3] != (32, 32, 3) or X.shape[3] == 0:
        raise DataError(f"{path}: X is {X.dtype} of shape {X.shape}, not uint8 of shape (32, 32, 3, n).")
    if y.size != X.shape[3] or y.dtype.kind not in "uif":
        raise DataError(f"{path}: y holds {y.size} {y.dtype} labels, but X holds {X.shape[3]} images.")
    digits = y.ravel()
    bad = np.flatnonzero(~np.isin(digits, np.arange(1, 11)))
    if bad.size:
        raise DataError(f"{path}: label {bad[0]} is {digits[bad[0]]}, not one of 1 … 10.")
    pixels = np.ascontiguousarray(X.transpose(3, 2, 0, 1)).reshape(X.shape[3], -1)
    return Images(pixels, digits.astype(np.int64) % 10, COLOUR, "svhn")


def _load_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    with _reading(path):
        if (wrong := check_mat5(path, ("X", "y"))) is not None:
            raise DataError(f"{path}: {wrong}.")
    try:
        variables = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # scipy raises many kinds of errors on damaged files
        raise DataError(f"{path}: is damaged ({type(error).__name__}: {error}).") from None
    return np.asarray(variables["X"]), np.asarray(variables["y"])


# ---------------------------------------------------------------------- digits
def digits(train: bool = True) -> Images:
    """The handwritten digits that come with scikit-learn; there are no test images."""
    if not train:
        raise DataError("digits has no test images; set some of its 1797 images aside.")
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return Images(X.astype(np.uint8), y.astype(np.int64), (8, 8), "digits", white=16)


# ---------------------------------------------------------------------- shared
@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except EOFError:
        raise DataError(f"{path}: is truncated, its compressed data stop before their end.") from None
    except (OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read ({reason}).") from None


def _check_labels(path: Path, labels: np.ndarray, what: str) -> None:
    bad = np.flatnonzero(labels > 9)
    if bad.size:
        raise DataError(f"{path}: {what} {bad[0]} has the label {labels[bad[0]]}, not one of 0 … 9.")


MATRIX, COMPRESSED = 14, 15
# types of the first three parts of a matrix: miUINT32, miINT32, miINT8
PARTS = (6, 5, 1)
# bytes of a number of each type that data may have
BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}
NUMERIC = range(6, 16)
COMPLEX = 0x08
# deflate cannot expand data by more than this factor
EXPANSION = 1032
MATRIX_HEAD = 512  # bytes with flags, dimensions and name of a variable


def check_mat5(path: Path, names: tuple[str, ...]) -> str | None:
    """What is wrong with the file, None if every length fits and all `names` are real numeric arrays."""
    size = path.stat().st_size
    missing = set(names)
    with path.open("rb") as file:
        head = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
        if head.startswith((b"MATLAB 7.3", b"\x89HDF")):
            return "is a MATLAB 7.3 (HDF5) file; save it with -v7"
        # a zero among the first four bytes would make a parser take the file for MATLAB 4
        if order is None or 0 in head[:4] or struct.unpack(f"{order}H", head[124:126])[0] != 0x0100:
            return "is not a MATLAB 5 file"
        at = 128
        while at < size:
            file.seek(at)
            tag = file.read(8)
            if len(tag) < 8:
                return "is truncated inside the header of a variable"
            kind, count = struct.unpack(f"{order}2I", tag)
            if count > size - at - 8:
                return f"announces {count} bytes at offset {at}, {size - at - 8} are left"
            start, room = file.read(min(count, MATRIX_HEAD)), count
            if kind == COMPRESSED:
                start = zlib.decompressobj().decompress(start, MATRIX_HEAD)
                if len(start) < 8:
                    return f"holds compressed data at offset {at} that are cut off"
                kind, announced = struct.unpack(f"{order}2I", start[:8])
                start, room = start[8:], EXPANSION * count
                if announced > room:
                    return f"announces {announced} bytes in {count} compressed ones at offset {at}"
                room = announced
            if kind != MATRIX:
                return f"holds something other than an array (type {kind}) at offset {at}"
            name = _matrix(start, room, order)
            if name is None:
                return f"holds a damaged or unusual array at offset {at}"
            missing.discard(name)
            at += 8 + count
    return f"holds no variable {' and no variable '.join(sorted(missing))}" if missing else None


def _matrix(start: bytes, room: int, order: str) -> str | None:
    """The name of a real numeric array whose parts fit together and into `room` bytes; None if they do not."""
    at, kinds, parts, counts = 0, [], [], []
    for _ in range(4):  # flags, dimensions, name, data
        if len(start) < at + 8:
            return None
        kind, count = struct.unpack(f"{order}2I", start[at : at + 8])
        first = at + 8
        if kind > 0xFFFF:  # up to four bytes share the tag
            kind, count, first = kind & 0xFFFF, kind >> 16, at + 4
            if count > 4:
                return None
        if first + count > room:
            return None
        kinds.append(kind)
        counts.append(count)
        parts.append(start[first : first + count])
        at = first + count + (-(first + count) % 8)
    flags, dimensions, name, _ = parts
    # scipy looks types up without checking them: one that does not exist ends the process
    if tuple(kinds[:3]) != PARTS or kinds[3] not in BYTES or len(flags) != 8 or len(dimensions) not in (8, 12, 16):
        return None
    word = struct.unpack(f"{order}I", flags[:4])[0]
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    if word & 0xFF not in NUMERIC or word >> 8 & COMPLEX or min(shape) < 0:
        return None
    return name.decode("latin-1") if counts[3] == BYTES[kinds[3]] * math.prod(shape) else None
