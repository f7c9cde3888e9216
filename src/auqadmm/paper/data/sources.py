"""What the published data sets consist of: addresses, sizes, checksums, and the files that identify them.

MNIST's own page has been gone for years; the address is that of a mirror of its files. The MD5 sums that the authors
of CIFAR-10 publish, and those commonly quoted for MNIST and SVHN, belong to the same files as these SHA-256 sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from auqadmm.paper.data.images import CIFAR_FILES, Images, cifar10, mnist, svhn


@dataclass(frozen=True)
class Source:
    """One file to download. An archive lists the `members` that are taken out of it, name → bytes."""

    url: str
    size: int
    sha256: str
    members: Mapping[str, int] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]

    def in_cache(self, folder: Path) -> bool:
        """Whether all its files exist, with the published sizes."""
        left = self.members or {self.file: self.size}
        try:
            return all((folder / name).stat().st_size == size for name, size in left.items())
        except OSError:  # missing, or not accessible
            return False


@dataclass(frozen=True)
class DataSet:
    """How a data set is read and from where it is downloaded.

    A folder with anything that matches one of `traces` counts as a folder of the data set.
    """

    read: Callable[[Path, bool], Images]
    train: tuple[Source, ...]
    test: tuple[Source, ...]
    traces: tuple[str, ...]

    def sources(self, train: bool) -> tuple[Source, ...]:
        return self.train if train else self.test

    def in_folder(self, folder: Path) -> bool:
        return folder.is_dir() and any(any(folder.glob(trace)) for trace in self.traces)


MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
SVHN = "http://ufldl.stanford.edu/housenumbers/"
CIFAR10 = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    {f"cifar-10-batches-bin/{name}": 30_730_000 for name in CIFAR_FILES[True] + CIFAR_FILES[False]},
)

DATA_SETS = {
    "mnist": DataSet(
        mnist,
        train=(
            Source(
                MNIST + "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            Source(
                MNIST + "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
        ),
        test=(
            Source(
                MNIST + "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            Source(
                MNIST + "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        traces=("*-idx[13]-ubyte", "*-idx[13]-ubyte.gz"),
    ),
    "cifar10": DataSet(
        cifar10,
        train=(CIFAR10,),
        test=(CIFAR10,),
        traces=("cifar-10-*", "data_batch_*", "test_batch*"),
    ),
    "svhn": DataSet(
        svhn,
        train=(
            Source(
                SVHN + "train_32x32.mat",
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
        ),
        test=(
            Source(
                SVHN + "test_32x32.mat",
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        traces=("*_32x32.mat",),
    ),
}
