"""In the process of a Ray actor: holders, and blocks of a Ray Dataset."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm.engines.holder import Holder
from auqadmm.problem import InputError
from auqadmm.problem.sources import share

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import ray
    from ray.data import Dataset


@dataclass(frozen=True)
class RayDataset:
    """A Ray Dataset as blocks, each block of the dataset one: two columns are y and weight, all others features.

    Parameters
    ----------
    dataset
        A `ray.data.Dataset`. How many blocks it has: `dataset.repartition(n)`.
    target, weight
        Names of the columns with y and, if any, the sample weights.

    Examples
    --------
    >>> import auqadmm as aq
    >>> blocks = aq.engines.RayDataset(dataset, target="sick")  # doctest: +SKIP
    >>> problem = aq.Problem(aq.Logistic(), aq.L2(1.0), blocks)  # doctest: +SKIP
    >>> aq.solve(problem, engine="ray")  # doctest: +SKIP
    """

    dataset: Dataset | None
    target: str
    weight: str | None = None

    def __call__(self, rank: int, world: int) -> list[Any]:
        """The share of a process that is not one of our actors."""
        import ray

        refs = self.refs()
        return [self.block(ray.get(refs[j])) for j in share(len(refs), rank, world)]

    def refs(self) -> list[ray.ObjectRef]:
        assert self.dataset is not None  # only copies sent to actors have none
        return list(self.dataset.to_arrow_refs())

    def block(self, table: pa.Table) -> tuple[pd.DataFrame | np.ndarray, ...]:
        others = [self.target] if self.weight is None else [self.target, self.weight]
        for name in others:
            if name not in table.column_names:
                raise InputError(f"The dataset has no column {name!r}; it has {', '.join(table.column_names)}.")
        frame = table.to_pandas()
        return frame.drop(columns=others), *(frame[name].to_numpy() for name in others)


class Actor:
    """Holders in a process of their own, one per run."""

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}

    def about(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def answer(self, run: str, message: bytes) -> bytes:
        return self.holders.setdefault(run, Holder())(message)

    def bring(self, run: str, source: RayDataset, refs: list[ray.ObjectRef]) -> str:
        """Fetch the blocks; returns an error text, if any."""
        import ray

        try:
            brought = [source.block(table) for table in ray.get(refs)]
        except Exception as error:
            return str(error)
        self.holders[run] = Holder(brought)
        return ""

    def forget(self, run: str) -> None:
        self.holders.pop(run, None)
