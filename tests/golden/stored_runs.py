"""Runs that were stopped half-way and a model, as version 0.1 left them in files; later versions must read them.

    stored/0.1/<case>.zip       the folder of checkpoints of a run that was stopped
    stored/0.1/ends.json        the v that each of them ends with, and its rounds
    stored/0.1/classes.json     every class that a checkpoint may name, with its fields
    stored/0.1/model/           what `auqadmm fit` wrote, with predictions.json beside it

`python -m tests.golden.stored_runs FOLDER` writes such a folder; the one of a released version is never written again.
Rows are made of whole numbers, so that they have the same bits everywhere.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.cli import main as command
from auqadmm.states import REGISTRY

STORED = Path(__file__).parent / "stored"
HEAD = "age,dose,colour,hospital,sick\n"


def whole(rows: int, columns: int, seed: int) -> np.ndarray:
    """Integers between −50 and 50 without much of a pattern."""
    i, j = np.arange(rows)[:, None], np.arange(columns)[None]
    return ((i + seed) ** 2 * (7 * j + 3) + 31 * i * (j + 2) ** 2 + 17 * j + seed) % 101 - 50


def blocks(kind: str, sizes: tuple[int, ...] = (30, 24, 36), features: int = 5) -> list[tuple[Any, np.ndarray]]:
    found = []
    for seed, n in enumerate(sizes, start=1):
        A, noise = whole(n, features, seed), whole(n, 1, 10 + seed)[:, 0]
        score = A @ np.arange(-2, features - 2) + 2 * noise
        y = {"real": score / 64, "sign": np.where(score > 0, 1.0, -1.0), "class": score % 97 // 33}[kind]
        found.append((A / 32, y))
    return found


def years() -> list[tuple[Any, np.ndarray]]:
    """Columns that are far from zero and of different sizes."""
    scale, shift = np.array([1.0, 64.0, 0.125, 1.0, 8.0]), np.array([2000.0, 0.0, 16.0, 0.0, 512.0])
    return [(X * scale + shift, y) for X, y in blocks("sign")]


def picture() -> aq.Problem:
    """Rows whose neighbouring features are alike."""
    smooth = [
        (np.cumsum(np.cumsum(X.reshape(-1, 4, 4), 1), 2).reshape(-1, 16), y) for X, y in blocks("sign", (40, 44), 16)
    ]
    return aq.Problem(aq.Logistic(), aq.L2(0.5), [(X / 8, y) for X, y in smooth], image=(4, 4))


def sparse() -> aq.Problem:
    rows = [(scipy.sparse.csr_matrix(np.where(abs(X) > 0.8, X, 0.0)), y) for X, y in blocks("sign")]
    return aq.Problem(aq.Logistic(), aq.L1(2.0), rows, intercept=True)


def lasso() -> aq.Problem:
    return aq.Problem(aq.Logistic(), aq.L1(2.0), blocks("sign"))


def two_classes() -> aq.Problem:
    """Rows and features enough for classes that stay coupled."""
    return aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks("sign", (64, 64), 16))


def multinomial() -> aq.Problem:
    return aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks("class"))


def regression() -> aq.Problem:
    return aq.Problem(aq.LeastSquares(), aq.ElasticNet(0.5, 0.5), blocks("real", (30, 3, 24)))


@dataclass(frozen=True)
class Case:
    """A run that was saved after `stop` iterations, and goes on for at most `end`."""

    make: Callable[[], aq.Problem]
    method: Any
    stop: int = 3
    end: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, max_iter: int, folder: Path | None = None) -> aq.Result:
        keep = None if folder is None else aq.Checkpoint(folder, every=100, keep=1)
        options = {"certificate_tol": 1e-9, **self.options}
        return aq.solve(self.make(), self.method, max_iter=max_iter, checkpoint=keep, **options)


CASES = {
    "auq-lr": Case(multinomial, "auq-lr", stop=4, options={"certificate_tol": 1e-12}),
    "newton": Case(multinomial, "newton", stop=2),
    "auto": Case(multinomial, "auto", stop=2, options={"round_cost": 100.0}),
    "auq-admm": Case(multinomial, "auq-admm"),
    "auq-lr-raw-columns": Case(
        lambda: aq.Problem(aq.Logistic(), aq.L2(0.25), years(), intercept=True), "auq-lr", stop=4
    ),
    "auq-lr-image": Case(picture, "auq-lr", stop=4),
    "auq-lr-direct": Case(regression, "auq-lr", stop=2),
    "auto-newton": Case(regression, "auto", stop=1),
    "auq-lr-coupled": Case(two_classes, "auq-lr"),
    "newton-dual": Case(lasso, aq.methods.Newton(round_cost=2), stop=2),
    "newton-l1": Case(sparse, "newton", stop=2),
    "rb-admm": Case(regression, "rb-admm"),
    "ac-admm": Case(multinomial, "ac-admm", stop=5),
    "c-admm-lbfgs": Case(multinomial, "c-admm", options={"local": "lbfgs"}),
    "lbfgs": Case(multinomial, "lbfgs", stop=4, end=12),
    "lbfgs-w": Case(multinomial, "lbfgs-w", stop=2),
    "lbfgs-w-raw-columns": Case(lambda: aq.Problem(aq.Huber(), aq.L2(0.25), years(), intercept=True), "lbfgs-w"),
    "owl-qn": Case(sparse, "owl-qn", stop=4, end=12),
    "fista": Case(sparse, "fista", stop=4, end=12),
}


def table() -> str:
    """A file of rows for `auqadmm fit`."""
    lines = []
    for k, (a, b) in enumerate(whole(90, 2, 5).tolist()):
        sick = a + 2 * b + whole(90, 1, 11)[k, 0] > 0
        lines.append(f"{60 + a},{b / 8},{('red', 'blue', 'green')[a % 3]},{'ab'[k % 2]},{'yes' if sick else 'no'}\n")
    return HEAD + "".join(lines)


def write(folder: Path) -> None:
    """What this version leaves in files."""
    folder.mkdir(parents=True)
    ends = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            case.run(case.stop, Path(place))
            with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
                for path in sorted(Path(place).rglob("*")):
                    if path.is_file() and path.name != ".lock":
                        entry = zipfile.ZipInfo(path.relative_to(place).as_posix())
                        packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
        result = case.run(case.end)
        ends[name] = {"v": result.v.tolist(), "n_iter": result.n_iter, "rounds": result.history[-1].rounds}
    (folder / "ends.json").write_text(json.dumps(ends) + "\n", encoding="utf-8")
    classes = {name: list(REGISTRY.fields_of(cls)) for name, cls in REGISTRY.classes.items()}
    (folder / "classes.json").write_text(json.dumps(classes, indent=1) + "\n", encoding="utf-8")
    fit(folder)


def fit(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.csv"
        file.write_text(table(), encoding="utf-8")
        arguments = ["fit", str(file), "--model", "logistic", "--target", "sick", "--site", "hospital"]
        with suppress(SystemExit):
            command([*arguments, "--out", str(Path(place) / "out"), "--quiet"])
        (folder / "model").mkdir()
        for name in ("model.json", "model.safetensors"):
            (folder / "model" / name).write_bytes((Path(place) / "out" / name).read_bytes())
    model = aq.load(folder / "model")
    rows = new_rows()
    told = {"predict": model.predict(rows).tolist(), "decision_function": model.decision_function(rows).tolist()}
    told |= {"predict_proba": model.predict_proba(rows).tolist()}
    (folder / "model" / "predictions.json").write_text(json.dumps(told) + "\n", encoding="utf-8")


def new_rows() -> Any:
    import pandas as pd

    colours = ["red", "green", "blue", "red"]
    return pd.DataFrame({"age": [20.0, 60.5, 88.0, 101.0], "dose": [-3.5, 0.0, 2.25, 6.0], "colour": colours})


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(Path(sys.argv[1]))
