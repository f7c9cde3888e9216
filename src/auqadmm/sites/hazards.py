"""Baseline hazards of one site, on a grid of times: steps between two times are made of enough events.

A cumulative hazard jumps at event times, and a grid that is fine enough tells them. So between any two neighbouring
times that were ever asked for there are at least `min_events` events, and at each of them `min_rows` rows are still at
risk. Whether a grid is refused tells something too, so only a few grids are answered of one data set.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from auqadmm.blocks.shard import Shard
from auqadmm.problem.risk_sets import EVENT, STRATUM, TIME
from auqadmm.sites.policy import Policy, PolicyError

MOST_GRIDS = 3  # of one data set, refused ones included
MOST_TIMES = 1000  # of one grid


def check_grid(policy: Policy, path: Path, data: str, grid: ArrayLike, shard: Shard) -> None:
    """Refuse a grid that is too fine; grids are remembered in a file of the site's."""
    times = np.asarray(grid, dtype=np.float64)
    if times.ndim != 1 or not 0 < len(times) <= MOST_TIMES or not np.isfinite(times).all() or times.min() <= 0:
        raise PolicyError("times of a baseline hazard are numbers above zero")
    known: dict[str, dict[str, list[Any]]] = json.loads(path.read_text()) if path.exists() else {}
    own = known.setdefault(data, {"asked": [], "told": []})
    asked = sorted(set(times.tolist()))
    if asked not in own["asked"]:
        if len(own["asked"]) >= MOST_GRIDS:
            raise PolicyError(f"baseline hazards are told on {MOST_GRIDS} grids of times, and these were others")
        own["asked"].append(asked)
        _write(path, known)
    every = np.union1d(np.asarray(own["told"], dtype=np.float64), times)
    y = shard.target.double().cpu().numpy()
    for stratum in np.unique(y[:, STRATUM]):
        rows = y[y[:, STRATUM] == stratum]
        events = np.sort(rows[rows[:, EVENT] > 0, TIME])
        steps = np.diff(np.searchsorted(events, np.r_[0.0, every], "right"))
        if (steps < policy.min_events).any():
            raise PolicyError(f"between two times of the grid there are fewer than {policy.min_events} events")
        if int((rows[:, TIME] > every[-1]).sum()) < policy.min_rows:
            raise PolicyError(f"at the last time of the grid fewer than {policy.min_rows} rows are at risk")
    own["told"] = every.tolist()
    _write(path, known)


def _write(path: Path, known: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known))
