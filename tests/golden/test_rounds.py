"""The rows of the rounds table that need no download: as many rounds, bytes and products as ever."""

from __future__ import annotations

import json

import pytest

from tests.golden.rounds_to_gap import FILE, METHODS, hits

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", KEPT)
def test_rounds_to_a_gap_are_what_they_were(case: str) -> None:
    workload, method, *prior = case.split()
    target, counts = KEPT[case]["target"], KEPT[case]["counts"]
    assert hits(workload, method, "".join(prior), counts[0]).get(target) == counts


def test_every_method_and_workload_is_among_them() -> None:
    kept = [case.split() for case in KEPT]
    assert {case[1] for case in kept} == set(METHODS)
    assert len({case[0] for case in kept}) == 5
    reached = {case[1] for case in kept if KEPT[" ".join(case)]["target"] == 1e-6}
    assert {"auq-lr", "newton", "auto", "lbfgs", "lbfgs-w", "owl-qn", "fista", "c-admm", "rb-admm"} <= reached
