"""Where blocks live."""

from __future__ import annotations

from auqadmm.core.reduce import Engine
from auqadmm.engines.local import LocalEngine
from auqadmm.problem.shard import Shard

__all__ = ["LocalEngine", "resolve"]


def resolve(engine: str | Engine, shard: Shard) -> Engine:
    """An engine by name, holding the shard."""
    if engine == "local":
        return LocalEngine(shard)
    if not hasattr(engine, "map_sum"):
        raise ValueError(f"Unknown engine {engine!r}; the known engine is 'local'.")
    return engine  # type: ignore[return-value]  # it has the primitives
