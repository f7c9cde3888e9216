"""A forest plot: one coefficient at every site, with its interval, and the common estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from auqadmm.inference.inference import Inference


def draw(of: Inference, k: int, ax: Any) -> Any:
    """Sites from the top, the common estimate last; a site that does not determine the coefficient has no mark."""
    import matplotlib.pyplot as plt

    sites = of.sites.xs(of.names[k], level="column")
    common = of.interval
    show = np.exp if of.exponentiated else np.asarray
    if ax is None:
        _, ax = plt.subplots(figsize=(6.0, 1.2 + 0.32 * (len(sites) + 1)), layout="constrained")
    places = np.arange(len(sites), 0, -1)
    coef, low, high = (show(sites[name].to_numpy()) for name in ("coef", "low", "high"))
    ax.hlines(places, low, high, color="0.35", linewidth=1.2)
    weight = 1 / np.square(sites["se"].to_numpy())
    size = 20 + 80 * weight / np.nanmax(weight) if np.isfinite(weight).any() else 40
    ax.scatter(coef, places, s=size, marker="s", color="0.2", zorder=3)
    middle = float(show(of.coef[k]))
    if common is not None:
        ends = show(common[k])
        ax.fill([ends[0], middle, ends[1], middle], [0, 0.25, 0, -0.25], color="C0", zorder=3)
    ax.axvline(middle, color="C0", linewidth=0.8, linestyle="--")
    ax.axvline(1.0 if of.exponentiated else 0.0, color="0.7", linewidth=0.8)
    ax.set_yticks([*places, 0], [*sites.index, "all sites"])
    ax.set_xlabel(f"{of.exponentiated} of {of.names[k]}" if of.exponentiated else f"coefficient of {of.names[k]}")
    if of.exponentiated:
        ax.set_xscale("log")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax
