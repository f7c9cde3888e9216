"""A study of three hospitals, as one data frame, and ways to hand it over."""

from __future__ import annotations

import numpy as np
import pandas as pd


def study(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    """Numbers, factors, exposure, offset, weights, sites of unequal size, and a target for every family."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 10, rows).round(1),
            "bmi": rng.gamma(20, 1.3, rows),
            "stage": rng.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2]),
            "grade": rng.integers(1, 4, rows),
            "days": rng.integers(20, 365, rows).astype(float),
            "log_days": rng.normal(0, 0.3, rows),
            "weight": rng.integers(1, 4, rows).astype(float),
            "hospital": rng.choice(["north", "south", "west"], rows, p=[0.6, 0.3, 0.1]),
        }
    )
    eta = 0.02 * (frame["age"] - 50) + 0.4 * (frame["stage"] == "b") + 0.05 * (frame["bmi"] - 26)
    frame["sick"] = (rng.uniform(size=rows) < 1 / (1 + np.exp(-eta))).astype(int)
    frame["falls"] = rng.poisson(frame["days"] / 100 * np.exp(eta))
    frame["cost"] = rng.gamma(2.0, np.exp(eta) / 2.0)
    frame["score"] = eta + rng.normal(0, 0.5, rows)
    return frame


def ways(frame: pd.DataFrame) -> dict[str, tuple[object, object]]:
    """The same rows as data and sites: one frame, a list, a dictionary in another order, one site."""
    parts = dict(iter(frame.groupby("hospital")))
    return {
        "column": (frame, "hospital"),
        "labels": (frame, frame["hospital"].to_numpy()),
        "list": (list(parts.values()), None),
        "dictionary": (dict(reversed(parts.items())), None),
        "alone": (frame, None),
    }
