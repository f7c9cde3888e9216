"""How often do 95 % intervals hold the true coefficient? Simulated studies, several sites each.

    python benchmarks/coverage.py --out results/statistics/coverage.json --commit C

With 500 studies a share of 0.95 is known to ± 0.01 (one standard deviation).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

import auqadmm as aq

TRUE = np.array([0.5, -0.3])  # of the columns; the intercept is −0.2
INTERCEPT = -0.2
SIZES = (150, 100, 60, 40)


@dataclass(frozen=True)
class Study:
    """A family, targets for logits z, and which errors are asked for; `sites`: how many, of 20 rows each, in place of
    SIZES; `spread`: the standard deviation of what rows of a site have in common; `own`: intercepts of sites."""

    name: str
    family: str
    draw: Callable[[np.ndarray, Generator], np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    sites: int = 0
    spread: float = 0.0
    own: bool = False


def _logit(z: np.ndarray, rng: Generator) -> np.ndarray:
    return rng.binomial(1, 1 / (1 + np.exp(-z)))


def _counts(z: np.ndarray, rng: Generator) -> np.ndarray:
    return rng.poisson(rng.gamma(2.0, np.exp(z) / 2))


def _uneven(z: np.ndarray, rng: Generator) -> np.ndarray:
    return z + rng.normal(size=len(z)) * (0.3 + np.abs(z))


STUDIES = [
    Study("gaussian", "gaussian", lambda z, rng: z + rng.normal(size=len(z))),
    Study("logit", "binomial", _logit),
    Study("poisson", "poisson", lambda z, rng: rng.poisson(np.exp(z))),
    Study("gamma", "gamma", lambda z, rng: rng.gamma(2.0, np.exp(z) / 2)),
    Study("negative binomial, k searched", "negative-binomial", _counts),
    Study("gaussian, uneven variance, robust", "gaussian", _uneven, {"cov": "robust"}),
    Study(
        "gaussian, 60 sites, by site", "gaussian", lambda z, rng: z + rng.normal(size=len(z)),
        {"cov": "cluster", "correction": True}, sites=60, spread=0.7,
    ),
    Study("logit, site intercepts", "binomial", _logit, spread=1.0, own=True),
]  # fmt: skip


def covered(study: Study, seed: int) -> list[bool]:
    """Which coefficients, the intercept last, are in their intervals."""
    rng = np.random.default_rng(seed)
    sizes = [20] * study.sites if study.sites else SIZES
    site = np.repeat(np.arange(len(sizes)), sizes)
    X = np.column_stack([rng.normal(size=len(site)), rng.random(len(site)) < 0.4])
    X[:, 0] += rng.normal(size=len(sizes))[site] * (study.spread > 0)
    y = study.draw(X @ TRUE + INTERCEPT + study.spread * rng.normal(size=len(sizes))[site], rng)
    model = aq.ConsensusGLM(study.family, site_intercepts=study.own, tol=1e-10, method="newton").fit(X, y, sites=site)
    ends = model.inference(**study.options).interval
    assert ends is not None
    truth = TRUE if study.own else np.append(TRUE, INTERCEPT)
    return [bool(low <= t <= high) for t, (low, high) in zip(truth, ends, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--studies", type=int, default=500)
    options = parser.parse_args()
    rows = []
    for study in STUDIES:
        began = time.perf_counter()
        found = np.array([covered(study, seed) for seed in range(options.studies)])
        shares = found.mean(0).tolist()
        rows.append({"study": study.name, "studies": options.studies, "shares": shares, "overall": float(found.mean())})
        print(study.name, shares, f"{time.perf_counter() - began:.0f} s", flush=True)
        about = {"commit": options.commit, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
