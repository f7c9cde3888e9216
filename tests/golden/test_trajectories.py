"""Every iteration of every method is what it was: iterates to rounding, what travelled exactly.

trajectories.json was written by `python -m tests.golden.record`. A change that is meant to change iterates records it
anew, in a commit that says so.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from auqadmm import baselines, methods
from tests.golden.cases import COUNTS, DIGITS, METHODS, distance, pairs, run

KEPT = json.loads(Path(__file__).with_name("trajectories.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-10


@pytest.mark.parametrize("case", KEPT)
def test_every_iteration_is_what_it_was(case: str) -> None:
    name, method = case.split()
    kept = KEPT[case]
    found = run(name, method, kept.get("length", 1))
    assert found.get("refused") == kept.get("refused")
    if "refused" in kept:
        return
    assert (found["status"], len(found["v"])) == (kept["status"], len(kept["v"]))
    for k, (before, now) in enumerate(zip(kept["v"], found["v"], strict=True), start=1):
        assert distance(before, now) <= TOLERANCE, f"v of iteration {k}"
    assert found["objective"] == pytest.approx(kept["objective"], rel=TOLERANCE)
    for count in COUNTS:
        assert found[count] == kept[count], count


def test_every_method_is_among_them_on_every_model_of_the_digits() -> None:
    assert set(METHODS) == {"auto", *methods.KNOWN, *baselines.KNOWN}
    assert {case for case in KEPT if case.startswith("digits")} == {f"{x} {m}" for x in DIGITS for m in METHODS}
    kept = {f"{name} {method}" for name, method in pairs()}
    assert set(KEPT) <= kept
    assert all(kept.get("length", 10) == 10 for case, kept in KEPT.items() if case.startswith("digits"))
    moving = [kept["v"] for kept in KEPT.values() if "v" in kept]
    assert all(v[-1][0] > 0 for v in moving), "a run whose v stays zero says nothing"
