"""The problems the benchmark runs on, as values: `select("mnist-*")`, then `workload.make()`.

    <data>-elastic-mean|sum        least squares of the label as a number, l1 = l2 = 0.01         C = 1
    <data>-multinomial-mean|sum    softmax regression, g = ½‖v‖²                                  C = 10
    <data>-svm                     smoothed hinge, ε = 1/5000, mean, classes 0 and 1, g = ½‖v‖²   C = 1

data is mnist, svhn, cifar10 or digits; pixels in [0, 1], no intercept; one class per worker, the first 2000 (mnist) or
1000 (svhn, cifar10) training rows of each in file order, for svm the first 5000, 4500, 5000; all rows of digits.
Around mnist-multinomial-sum, mnist-elastic-sum and mnist-svm: other splits (-iid, -dirichlet), other numbers of
workers (-n2 … -n50, iid), other strengths of g (-l2_0.001, …).

Data are looked for in `$AUQADMM_DATA` and `../shared/data`: a pack `<name>.npz` there comes first, then the
official files in `<name>/`. `python benchmarks/workloads.py pack DIR` writes such packs, small enough to be sent away.
Needs torch, numpy and scipy; digits also scikit-learn, unless there is a digits.npz.

Shapes: n images, c colours, h × w pixels.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import numpy as np

import auqadmm as aq
from auqadmm.paper.data import DataError, Images, by_class, cifar10, dirichlet, iid, mnist, svhn
from auqadmm.paper.problems import read_pack, write_pack

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
READERS = {"mnist": mnist, "svhn": svhn, "cifar10": cifar10}
SCALE = {"mnist": 255.0, "svhn": 255.0, "cifar10": 255.0, "digits": 16.0}
ROWS = {"mnist": 2000, "svhn": 1000, "cifar10": 1000, "digits": None}
SVM_ROWS = {"mnist": 5000, "svhn": 4500, "cifar10": 5000, "digits": None}
IMAGE = "image"
SEED = 0
DIRICHLET = 0.3


@dataclass(frozen=True)
class Workload:
    """One problem. `split`: "class", "iid" or "dirichlet"; `workers` and `l2` None: as the base problem has them."""

    data: str
    model: str
    reduction: str = "mean"
    split: str = "class"
    workers: int | None = None
    l2: float | None = None

    @property
    def name(self) -> str:
        parts = [self.data, self.model] + ([self.reduction] if self.model != "svm" else [])
        if self.workers is not None:
            parts.append(f"n{self.workers}")
        elif self.split != "class":
            parts.append(self.split)
        if self.l2 is not None:
            parts.append(f"l2_{self.l2:g}")
        return "-".join(parts)

    @property
    def notes(self) -> str:
        rows = f"{self.reduction} over {self.per_class or 'all'} rows of each of {len(self.classes)} classes"
        split = {
            "class": "one class per worker",
            "iid": f"shuffled over {self._blocks} workers",
            "dirichlet": f"Dirichlet({DIRICHLET}) over {self._blocks} workers",
        }
        return f"{self.model}, {rows}, {split[self.split]}" + ("" if self.l2 is None else f", l2 = {self.l2:g}")

    @property
    def classes(self) -> tuple[int, ...]:
        return (0, 1) if self.model == "svm" else tuple(range(10))

    @property
    def per_class(self) -> int | None:
        return (SVM_ROWS if self.model == "svm" else ROWS)[self.data]

    @property
    def pooled(self) -> Workload:
        """The workload that has the same optimum: a sum over rows does not depend on how they are split."""
        return replace(self, split="class", workers=None) if self.reduction == "sum" else self

    @property
    def _blocks(self) -> int:
        return self.workers or len(self.classes)

    def make(self, prior: str = "") -> aq.Problem:
        """Read the data and build the problem; `DataError` where the data are missing.

        `prior`: "" for the plain problem, "image" for one that says of which images its features are the pixels.
        """
        images = self.images()
        blocks = by_class(images.X, images.y, self.per_class, self.classes)
        if self.split != "class":
            X, y = (np.concatenate(part) for part in zip(*blocks, strict=True))
            blocks = (
                iid(X, y, self._blocks, SEED) if self.split == "iid" else dirichlet(X, y, self._blocks, DIRICHLET, SEED)
            )
        loss, g = self._terms()
        shape = images.shape if prior == IMAGE else None
        return aq.Problem(loss, g, [(X / SCALE[self.data], y) for X, y in blocks], image=shape)

    def images(self) -> Images:
        """The data set; `DataError` where it is missing."""
        return dataset(self.data)

    def _terms(self) -> tuple[aq.LeastSquares | aq.Multinomial | aq.SmoothedHinge, aq.ElasticNet | aq.L2]:
        match self.model:
            case "elastic":
                return aq.LeastSquares(reduction=self.reduction), aq.ElasticNet(
                    1e-2, 1e-2 if self.l2 is None else self.l2
                )
            case "multinomial":
                return aq.Multinomial(reduction=self.reduction), aq.L2(1.0 if self.l2 is None else self.l2)
            case _:
                return aq.SmoothedHinge(eps=1 / 5000, reduction=self.reduction), aq.L2(
                    1.0 if self.l2 is None else self.l2
                )


# ---------------------------------------------------------------------- the registry
def _models(data: str) -> list[Workload]:
    both = [Workload(data, model, reduction) for model in ("elastic", "multinomial") for reduction in ("mean", "sum")]
    return [*both, Workload(data, "svm")]


def _variations(base: Workload) -> list[Workload]:
    splits = [replace(base, split="iid"), replace(base, split="dirichlet")]
    # as many workers as the base has is what "iid" says already
    numbers = [replace(base, split="iid", workers=n) for n in (2, 5, 20, 50) if n != len(base.classes)]
    return splits + numbers + [replace(base, l2=l2) for l2 in (1e-3, 1e-1, 100.0)]


def _registry() -> dict[str, Workload]:
    found = [w for data in ("digits", "mnist", "svhn", "cifar10") for w in _models(data)]
    for base in (
        Workload("mnist", "multinomial", "sum"),
        Workload("mnist", "elastic", "sum"),
        Workload("mnist", "svm"),
    ):
        found += _variations(base)
    return {w.name: w for w in found}


WORKLOADS = _registry()


def select(globs: Iterable[str]) -> list[Workload]:
    """All workloads whose name matches one of the globs, in the order of the registry."""
    globs = list(globs)
    found = [w for name, w in WORKLOADS.items() if any(fnmatchcase(name, glob) for glob in globs)]
    if not found:
        raise ValueError(f"No workload matches {' '.join(globs)}; there are {', '.join(WORKLOADS)}.")
    return found


# ---------------------------------------------------------------------- data
def roots() -> list[Path]:
    """Where data may lie, in order."""
    given = os.environ.get("AUQADMM_DATA")
    return ([Path(given)] if given else []) + [BESIDE]


@lru_cache(maxsize=2)
def dataset(name: str) -> Images:
    """Training images: from a pack, else from the official files; digits from a pack, else from scikit-learn."""
    for root in roots():
        if (pack := root / f"{name}.npz").is_file():
            return read_pack(pack, name)
    if name == "digits":
        return _digits()
    for root in roots():
        if (root / name).is_dir():
            return READERS[name](root / name)
    places = ", ".join(f"{root / name}.npz, {root / name}/" for root in roots())
    raise DataError(f"No data for {name}: looked for {places}; set AUQADMM_DATA to the folder that holds them.")


def _digits() -> Images:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        places = " or ".join(str(root / "digits.npz") for root in roots())
        raise DataError(f"No data for digits: they come with scikit-learn, or from {places}.") from None
    X, y = load_digits(return_X_y=True)
    return Images(X.astype(np.uint8), y.astype(np.int64), (8, 8), "digits")


# ---------------------------------------------------------------------- packs
def pack(folder: Path, workloads: Sequence[Workload]) -> None:
    """One pack per data set, with the rows that these workloads use."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(w.data for w in workloads):
        rows: dict[int, int | None] = {}
        for w in (w for w in workloads if w.data == name):
            for k in w.classes:
                before = rows.get(k, 0)
                rows[k] = None if before is None or w.per_class is None else max(before, w.per_class)
        path = folder / f"{name}.npz"
        try:
            write_pack(path, dataset(name), rows)
        except DataError as error:
            print(f"{name}: skipped. {error}")
            continue
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="List the workloads, or pack the data they use.")
    parser.add_argument("action", choices=["list", "pack"])
    parser.add_argument("folder", nargs="?", type=Path, help="where packs go")
    parser.add_argument("--workloads", nargs="+", default=["*"], metavar="GLOB")
    given = parser.parse_args(arguments)
    chosen = select(given.workloads)
    if given.action == "list":
        for w in chosen:
            print(f"{w.name:34} {w.notes}")
    elif given.folder is None:
        parser.error("pack needs a folder")
    else:
        pack(given.folder, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
