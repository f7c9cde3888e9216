"""What is drawn as images: samples of the data, weights beside class averages, the denoising illustration (S9).

Every function returns small arrays by name, so that a picture can be drawn again without its data.

Shapes: N workers, m pixels, C columns of the model; images (…, height, width), colour last.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from torch import Tensor

from auqadmm.api import solve
from auqadmm.core.solve import Iteration
from auqadmm.curvature import Lanczos
from auqadmm.methods import AUQ, C
from auqadmm.paper import problems
from auqadmm.paper.spec import INTERVAL, Denoising, PictureSpec, Samples, WeightImages
from auqadmm.problem import L2, LeastSquares, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from auqadmm.core.reduce import Reduce
    from auqadmm.core.solve import Method
    from auqadmm.core.state import Setup, State

Arrays = dict[str, np.ndarray]


def compute(spec: PictureSpec, data: Path | None = None, device: str = "cpu") -> Arrays:
    """The arrays of a picture."""
    match spec:
        case Samples():
            return samples(spec, data)
        case WeightImages():
            return weights(spec, data, device)
        case Denoising():
            return denoising(spec)


# ---------------------------------------------------------------------- data
def samples(spec: Samples, data: Path | None = None) -> Arrays:
    """images (count, classes, height, width[, 3]) as bytes."""
    images = problems.images(spec.data, data)
    classes = np.unique(images.y)
    rows = np.stack([np.flatnonzero(images.y == k)[: spec.count] for k in classes], axis=1)
    pictures = images.X[rows].reshape(*rows.shape, *images.shape)
    if len(images.shape) == 3:
        pictures = np.moveaxis(pictures, 2, -1)
    return {"images": (pictures * (255.0 / images.white)).astype(np.uint8), "classes": classes}


# ---------------------------------------------------------------------- weights
class Snapshot:
    """Keeps the weights that iteration k uses: the state after k − 1 already has them."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.weights: Tensor | None = None

    def __call__(self, event: Iteration) -> None:
        if event.row.iteration == self.iteration - 1:
            self.weights = event.state.blocks.W.diagonal()


def weights(spec: WeightImages, data: Path | None = None, device: str = "cpu") -> Arrays:
    """weights (N, m, C) of AUQ-ADMM; averages (N, m) of each worker's images; energies (N, m), mean squares."""
    problem = problems.make_problem(spec.problem, data)
    snapshot = Snapshot(spec.iteration)
    solve(
        problem,
        problems.make_method("auq-admm", spec.rank),
        max_iter=spec.iteration - 1,
        stop="residuals",
        abs_tol=0.0,
        rel_tol=0.0,
        local=spec.local,
        start=spec.start,
        seed=spec.seed,
        device=device,
        callbacks=[snapshot],
        evaluate_every=0,
    )
    assert snapshot.weights is not None
    images = problems.images(spec.problem.data, data)
    raw = problems.unit(problems.split(images, spec.problem), images.white)
    return {
        "weights": snapshot.weights.cpu().numpy().astype(np.float16),
        "averages": np.stack([X.mean(0) for X, _ in raw]).astype(np.float16),
        "energies": np.stack([(X**2).mean(0) for X, _ in raw]).astype(np.float16),
        "shape": np.array(images.shape),
    }


# ---------------------------------------------------------------------- denoising
def denoising(spec: Denoising) -> Arrays:
    """Both readings of S9 after ONE iteration.

    Per reading ("printed", "masked"): `u` (4, s, s) local models and `W` (4, s, s) weights of UQ with the exact
    diagonal; `v_<name>` (s, s) the average with these weights, without ("plain", ρ = 1), with Lanczos from Gaussian
    and from random signs, and with the controls of S11.
    """
    clean = _scene(spec.size)
    noise = spec.noise * np.random.default_rng(spec.seed).standard_normal(clean.shape)
    b = clean + noise
    arrays: dict[str, Any] = {"clean": clean, "noisy": b, "target": b / (1 + spec.strength)}
    for reading, problem in (("printed", _printed(b, spec.strength)), ("masked", _masked(b, spec.strength))):
        for name, method in _averages(spec.seed).items():
            u, W, v = _one_iteration(problem, method, spec)
            arrays[f"{reading}_v_{name}"] = v
            if name in ("weighted", "lanczos_gaussian"):
                extra = "" if name == "weighted" else "_lanczos"
                arrays[f"{reading}_W{extra}"] = W
            if name == "weighted":
                arrays[f"{reading}_u"] = u
    return {name: np.asarray(x, dtype=np.float32) for name, x in arrays.items()}


def _averages(seed: int) -> Mapping[str, Any]:
    lanczos = {kind: Lanczos(rank=5, seed=seed, start=kind) for kind in ("gaussian", "rademacher")}
    return {
        "weighted": AUQ(interval=INTERVAL, curvature="exact"),
        "plain": C(rho=1.0),
        "lanczos_gaussian": AUQ(interval=INTERVAL, curvature=lanczos["gaussian"]),
        "lanczos_signs": AUQ(interval=INTERVAL, curvature=lanczos["rademacher"]),
        "rho_a": C(rho=INTERVAL[0]),
        "permuted": problems.PermutedAUQ(interval=INTERVAL, curvature="exact"),
        "mean": problems.MeanAUQ(interval=INTERVAL, curvature="exact"),
    }


class _First:
    """The local models and weights of iteration 1, taken before iteration 2 replaces them."""

    def __init__(self, method: Method) -> None:
        self.method, self.name = method, method.name
        self.u: Tensor
        self.W: Tensor

    def init(self, setup: Setup, reduce: Reduce) -> State:
        state = self.method.init(setup, reduce)
        self.u, self.W = state.blocks.u, state.blocks.W.diagonal()
        return state

    def step(self, state: State, reduce: Reduce) -> State:
        return self.method.step(state, reduce)


def _one_iteration(problem: Problem, method: Method, spec: Denoising) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first = _First(method)
    result = solve(problem, first, max_iter=1, stop="residuals", abs_tol=0.0, rel_tol=0.0, seed=spec.seed)
    side = (spec.size, spec.size)
    u, W = (x.cpu().numpy().reshape(4, *side) for x in (first.u, first.W))
    return u, W, result.v.numpy().reshape(side)


def _quadrants(side: int) -> list[np.ndarray]:
    """Masks (side, side), row by row."""
    half = side // 2
    masks = []
    for top in (0, half):
        for left in (0, half):
            mask = np.zeros((side, side), dtype=bool)
            mask[top : top + half, left : left + half] = True
            masks.append(mask)
    return masks


def _printed(b: np.ndarray, strength: float) -> Problem:
    """f_j = ½‖u − b_j‖², b_j zero outside quadrant j."""
    eye = scipy.sparse.identity(b.size, format="csr")
    blocks = [(eye, np.where(mask, b, 0.0).ravel()) for mask in _quadrants(len(b))]
    return Problem(LeastSquares(reduction="sum"), L2(strength), blocks)


def _masked(b: np.ndarray, strength: float) -> Problem:
    """f_j = ½‖M_j(u − b)‖²."""
    eye = scipy.sparse.identity(b.size, format="csr")
    blocks = [(eye[mask.ravel()], b[mask]) for mask in _quadrants(len(b))]
    return Problem(LeastSquares(reduction="sum"), L2(strength), blocks)


def _scene(side: int) -> np.ndarray:
    """A grey picture with an object in every quadrant: a sun, a mountain, a lake, a house."""
    y, x = np.mgrid[0:side, 0:side] / (side - 1)
    picture = 0.45 + 0.25 * (1 - y)
    picture[(x - 0.25) ** 2 + (y - 0.22) ** 2 < 0.12**2] = 1.0
    picture[y > 0.12 + 1.1 * np.abs(x - 0.75)] = 0.3
    picture[(y > 0.12 + 1.1 * np.abs(x - 0.75)) & (y < 0.22)] = 0.95
    picture[y > 0.5] = 0.55
    lake = ((x - 0.25) / 0.2) ** 2 + ((y - 0.76) / 0.12) ** 2 < 1
    picture[lake] = 0.2 + 0.15 * np.sin(60 * y[lake])
    picture[(np.abs(x - 0.75) < 0.13) & (y > 0.7) & (y < 0.92)] = 0.85
    picture[(y > 0.56 + np.abs(x - 0.75) * 0.9) & (y < 0.7)] = 0.1
    picture[(np.abs(x - 0.75) < 0.035) & (y > 0.8) & (y < 0.92)] = 0.15
    return picture
