"""What earlier versions left in files is read, and goes on to the same end."""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.checkpoint.codec import CheckpointError, Reader
from auqadmm.states import REGISTRY
from tests.core.checkpoints import no_waiting
from tests.golden.stored_runs import CASES, STORED, new_rows

__all__ = ["no_waiting"]  # a fixture

VERSIONS = sorted(path.name for path in STORED.iterdir())
RUNS = [(version, path.stem) for version in VERSIONS for path in sorted((STORED / version).glob("*.zip"))]
CHANGED = "not among the registered|not those of this version"  # how the reader refuses a class


def unpacked(version: str, case: str, folder: Path) -> Path:
    with zipfile.ZipFile(STORED / version / f"{case}.zip") as packed:
        packed.extractall(folder)
    return folder


@pytest.mark.parametrize(("version", "case"), RUNS)
def test_a_stored_run_goes_on_to_the_same_end(version: str, case: str, tmp_path: Path) -> None:
    unpacked(version, case, tmp_path)
    given = CASES[case]
    seen: list[int] = []
    options = {"certificate_tol": 1e-9, **given.options, "callbacks": [lambda event: seen.append(event.row.iteration)]}
    keep = aq.Checkpoint(tmp_path, every=100, resume=True)
    result = aq.solve(given.make(), given.method, max_iter=given.end, checkpoint=keep, **options)
    end = json.loads((STORED / version / "ends.json").read_text(encoding="utf-8"))[case]
    assert seen == list(range(given.stop + 1, end["n_iter"] + 1)), "it must go on from where it was saved"
    assert (result.n_iter, result.history[-1].rounds) == (end["n_iter"], end["rounds"])
    v = torch.tensor(end["v"], dtype=torch.float64)
    assert float((result.v - v).norm()) <= 1e-10 * float(v.norm())
    assert "refused" not in result.message


def test_every_class_that_a_checkpoint_may_name_can_be_read() -> None:
    """A class or a field that was renamed needs an entry under its old name."""
    for version in VERSIONS:
        classes = json.loads((STORED / version / "classes.json").read_text(encoding="utf-8"))
        assert len(classes) > 40
        for name, fields in classes.items():
            reader, reason = Reader(REGISTRY, {}, torch.device("cpu"), {}), ""
            try:
                reader.decode({"is": name, "fields": dict.fromkeys(fields)})
            except CheckpointError as error:  # None is not what a field holds
                reason = str(error)
            assert not re.search(CHANGED, reason), f"version {version}: {reason}"


def test_the_reader_refuses_a_class_or_a_field_that_it_does_not_know() -> None:
    """What the test above goes by."""
    for name, fields in {"Nobody": {}, "Cost": {"rounds": 1, "nobody": 2}, "newton.Here": {"f": 1.0}}.items():
        with pytest.raises(CheckpointError, match=CHANGED):
            Reader(REGISTRY, {}, torch.device("cpu"), {}).decode({"is": name, "fields": fields})


def test_nearly_every_class_is_in_a_stored_run() -> None:
    named: set[str] = set()
    for version, case in RUNS:
        with zipfile.ZipFile(STORED / version / f"{case}.zip") as packed:
            for name in packed.namelist():
                if name.endswith(".json"):
                    named.update(re.findall(r'"is": "([^"]+)"', packed.read(name).decode()))
    classes = json.loads((STORED / "0.1" / "classes.json").read_text(encoding="utf-8"))
    large = {"auto.Change", "local.mixed.Both", "local.newton-cg.Factored", "local.newton-cg.Nearby"}  # take large data
    assert set(classes) - named == large


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stored_model_predicts_what_it_did(version: str) -> None:
    folder = STORED / version / "model"
    told = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    model, rows = aq.load(folder), new_rows()
    assert model.predict(rows).tolist() == told["predict"]
    assert len(set(told["predict"])) == 2
    for name in ("decision_function", "predict_proba"):
        np.testing.assert_allclose(getattr(model, name)(rows), told[name], rtol=1e-12)


def test_stored_files_are_small_and_nothing_else() -> None:
    assert "0.1" in VERSIONS
    assert {case for version, case in RUNS if version == "0.1"} == set(CASES)
    sizes = [os.path.getsize(path) for path in STORED.rglob("*") if path.is_file()]
    assert sum(sizes) < 200_000 * len(VERSIONS)
