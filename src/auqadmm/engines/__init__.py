"""Engines: the processes that store the blocks.

local    all in this process
torch    in many processes that run the same program, summed by torch.distributed
ray      on Ray actors, the loop in this process
dask     on Dask workers, the loop in this process
"""

from __future__ import annotations

from typing import Protocol, cast

import torch

from auqadmm.core.reduce import Engine
from auqadmm.engines.driver import DriverEngine, Pool
from auqadmm.engines.local import Local, LocalEngine, shards_of
from auqadmm.engines.on_dask import Dask
from auqadmm.engines.on_ray import Ray, RayDataset, RayWorkers
from auqadmm.engines.torch_distributed import Torch, TorchEngine
from auqadmm.errors import InputError
from auqadmm.problem import Problem

__all__ = [
    "KNOWN",
    "Dask",
    "DriverEngine",
    "Engine",
    "Local",
    "LocalEngine",
    "Place",
    "Pool",
    "Ray",
    "RayDataset",
    "RayWorkers",
    "Torch",
    "TorchEngine",
    "resolve",
    "shards_of",
]


class Place(Protocol):
    """What `solve(engine=…)` takes: settings of an engine, before it knows a problem.

    `place` may be called again after the returned engine was closed. One with `spmd = True` is for
    programs whose processes all call `solve`; otherwise one process does, and can restart when a worker is lost.
    """

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> Engine:
        """Place the blocks and agree on the census (`Problem.placed`).

        Parameters
        ----------
        problem
            What is to be solved.
        dtype, device
            Of the arithmetic on blocks.

        Returns
        -------
        Engine
            Open; `solve` closes it.
        """
        ...


KNOWN: dict[str, type[Local | Torch | Ray | Dask]] = {
    "local": Local,
    "torch": Torch,
    "ray": Ray,
    "dask": Dask,
}


def resolve(engine: object) -> Place:
    """An engine by name, with its default settings, or unchanged.

    Parameters
    ----------
    engine
        "local", "torch", "ray", "dask", one of their classes, or an object with `place`.

    Returns
    -------
    Place
        Settings of an engine.

    Raises
    ------
    InputError
        It is none of these.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.engines.resolve("local")
    Local()
    """
    if isinstance(engine, str) and engine.lower() in KNOWN:
        return cast("Place", KNOWN[engine.lower()]())
    if isinstance(engine, type) and engine in KNOWN.values():
        return engine()
    if not callable(getattr(engine, "place", None)):
        known = ", ".join(map(repr, KNOWN))
        raise InputError(f"Unknown engine {engine!r}; the known engines are {known}, or pass an object with `place`.")
    return cast("Place", engine)


def __dir__() -> list[str]:
    return sorted(__all__)
