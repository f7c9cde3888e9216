"""The way of one iteration on the architecture page is the way that it takes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import auqadmm as aq
from tests.problems import multinomial
from tests.test_architecture import EVERYTHING, MAY_IMPORT, MUTUAL

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = Path(aq.__file__).parent


def entered(method: str) -> list[str]:
    """`file:function` in the order of their calls, from iteration 4 to 5."""
    calls: list[str] = []
    on = False
    codes: dict[Any, str] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not on:
            return
        code = frame.f_code
        if code not in codes:
            inside = code.co_filename.startswith(str(PACKAGE))
            own = frame.f_locals.get("self")
            names = [c.__name__ for c in type(own).__mro__ if code.co_name in vars(c)] if own is not None else []
            path = str(Path(code.co_filename).relative_to(PACKAGE)) if inside else ""
            codes[code] = " ".join(f"{path}:{name}{code.co_name}" for name in ["", *(f"{n}." for n in names)])
        calls.append(codes[code])

    def look(event: aq.Iteration) -> bool:
        nonlocal on
        on = event.row.iteration == 4
        return event.row.iteration >= 5

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        aq.solve(multinomial(), method, max_iter=6, callbacks=[look], certificate_tol=1e-14)
    finally:
        sys.setprofile(before)
    return calls


def named(text: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py:[\w.]+)`", text)


def test_the_way_of_one_iteration() -> None:
    section = PAGE.read_text().split("## The way of one iteration")[1].split("\n## ")[0]
    steps, more = section.split("\nAUQ-LR replaces")
    listed = named(steps)
    assert len(listed) >= 12
    calls = entered("c-admm")
    at = 0
    for name in listed[1:]:  # the loop itself was entered before
        later = next((k for k in range(at, len(calls)) if name in calls[k].split()), None)
        assert later is not None, f"{name} is not entered, or not after the one before it on the page"
        at = later
    ours = {name for call in entered("auq-lr") for name in call.split()}
    assert len(named(more)) == 4
    assert set(named(more)) <= ours
    assert "core/solve.py:_Loop.go" in listed
    assert "def go(" in (PACKAGE / "core" / "solve.py").read_text()


def test_the_picture_of_rooms() -> None:
    picture = PAGE.read_text().split("```")[1]
    line_of = {
        room: k
        for k, line in enumerate(picture.splitlines())
        for room in re.findall(r"\w+", line[len(" what people call") :])
    }
    assert set(line_of) == set(MAY_IMPORT)
    for room, others in MAY_IMPORT.items():
        for other in others - EVERYTHING:
            assert line_of[room] < line_of[other] or {room, other} in MUTUAL, f"{room} imports {other}"
