"""Data sets written to files, split over workers, and the command line as a function."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import dump_svmlight_file

from auqadmm.cli import main


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line that an error is."""
        assert self.code == 1, (self.code, self.out, self.err)
        assert self.out == ""
        assert self.err.startswith("auqadmm: ")
        assert self.err.count("\n") == 1
        text = self.err.removeprefix("auqadmm: ").removesuffix("\n")
        assert text.isprintable()
        assert "Error:" not in text  # a sentence, not the name of an exception
        return text


def command(capsys, *arguments) -> Ran:
    """Run `auqadmm …` in this process."""
    code = 0
    try:
        main([str(a) for a in arguments])
    except SystemExit as ended:
        code = ended.code or 0
    told = capsys.readouterr()
    return Ran(code, told.out, told.err)


@pytest.fixture
def aq(capsys):
    return lambda *arguments: command(capsys, *arguments)


def write(frame: pd.DataFrame, path: Path, target: str = "y") -> Path:
    """A frame as a file, by the end of its name."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif path.suffix == ".npz":
        X = frame.drop(columns=target)
        np.savez(path, X=X.to_numpy(float), y=frame[target].to_numpy(), feature_names=np.array(X.columns, dtype=str))
    else:
        X = frame.drop(columns=target).to_numpy(float)
        dump_svmlight_file(X, frame[target].to_numpy(), str(path), zero_based=False)
    return path


def split(frame: pd.DataFrame, folder: Path, suffix: str, how: str = "thirds", target: str = "y") -> list[Path]:
    """Three workers: neighbouring rows, rows sorted by the target, or of very unequal sizes."""
    if how == "sorted":
        frame = frame.sort_values(target, kind="stable")
    cuts = {"unequal": [3, len(frame) // 5]}.get(how, [len(frame) // 3, 2 * len(frame) // 3])
    parts = (frame.iloc[: cuts[0]], frame.iloc[cuts[0] : cuts[1]], frame.iloc[cuts[1] :])
    return [write(part, folder / f"part-{k}{suffix}", target) for k, part in enumerate(parts)]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def people(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Numbers, categories, an id, a site and two kinds of targets."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"p{k:03d}" for k in range(rows)],
            "age": rng.integers(20, 80, rows),
            "dose": rng.normal(3.0, 2.0, rows),
            "colour": rng.choice(["red", "green", "blue"], rows),
            "ward": rng.choice(["north", "south"], rows),
        }
    )
    score = 0.05 * (frame["age"] - 50) + 0.3 * frame["dose"] + (frame["colour"] == "red") + rng.normal(0, 1, rows)
    frame["days"] = score.round(6)
    frame["sick"] = np.where(score > score.median(), "yes", "no")
    return frame
