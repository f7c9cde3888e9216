"""Are hazards proportional? The score test of a trend of every coefficient in time, from sums over sites.

    β + θ g(t),  θ = 0:    uᵀ(Σg²V − ΣgV H⁻¹ ΣgV)⁻¹u, u = Σ g (x − x̄)         (survival.py)

Shapes: m coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from auqadmm.errors import AuqadmmError, InputError
from auqadmm.inference.survival import TRANSFORMS, TrendQuery
from auqadmm.metrics.triangles import unpack

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from auqadmm.core.reduce import Reduce


@dataclass(frozen=True, eq=False)
class ProportionalHazards:
    """Score tests of a trend in time, one for each coefficient, then one for all together.

    Parameters
    ----------
    names
        Of the coefficients, and "GLOBAL".
    statistic, df, p
        χ² statistics, degrees of freedom, and probabilities of larger ones where hazards are proportional.
    transform
        Which function of time: "identity" and "log" are the same everywhere, "km" and "rank" are those of each stratum.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> rng = np.random.default_rng(0)
    >>> X, time = rng.normal(size=(80, 1)), rng.exponential(size=80)
    >>> model = aq.ConsensusCox().fit(X, (time, np.ones(80)), sites=np.arange(80) % 2)
    >>> test = model.ph_test("identity")
    >>> test.names, test.df.tolist()
    (('x0', 'GLOBAL'), [1.0, 1.0])
    """

    names: tuple[str, ...]
    statistic: np.ndarray
    df: np.ndarray
    p: np.ndarray
    transform: str

    @property
    def table(self) -> pd.DataFrame:
        """chisq, df and p of every coefficient and of all: a pandas data frame."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise AuqadmmError("Tables need pandas: pip install pandas; `statistic` and `p` do without.") from None
        return pandas.DataFrame({"chisq": self.statistic, "df": self.df, "p": self.p}, index=list(self.names))

    def __repr__(self) -> str:
        wide = max(len(name) for name in self.names)
        lines = [f"Proportional hazards, score tests of a trend in {_LABELS[self.transform]}", ""]
        lines.append(" " * wide + "     chisq   df        p")
        for name, x, df, p in zip(self.names, self.statistic, self.df, self.p, strict=True):
            lines.append(f"{name.ljust(wide)}{x:10.4f}{df:5g}{p:9.3g}")
        return "\n".join(lines)


_LABELS = {
    "identity": "time",
    "log": "log(time)",
    "km": "1 − Kaplan–Meier of each stratum",
    "rank": "the rank of time in each stratum",
}


def proportional_hazards(reduce: Reduce, v: Tensor, transform: str, names: tuple[str, ...]) -> ProportionalHazards:
    """The tests at v: one round."""
    from scipy import stats

    if transform not in TRANSFORMS:
        raise InputError(f"transform must be 'km', 'rank', 'identity' or 'log', got {transform!r}.")
    v = v.to(torch.float64)
    sums = reduce.judging(TrendQuery(transform), v, (v,))
    H, gH, ggH = (unpack(sums[name][None].cpu())[0].numpy() for name in ("H", "gH", "ggH"))
    u = sums["u"].cpu().numpy()
    d = np.sqrt(np.diag(H))
    if not (d > 0).all() or np.linalg.eigvalsh(H / d / d[:, None])[0] < 1e-12:
        raise InputError("Columns are collinear or constant at all events: their trends in time cannot be tested.")
    left = ggH - gH @ np.linalg.solve(H, gH)
    spread = np.diag(left)
    if not (spread > 1e-10 * np.diag(ggH)).all() or np.linalg.matrix_rank(left) < len(u):
        raise InputError("There are too few event times to test a trend of every coefficient in time.")
    statistic = np.append(u * u / spread, u @ np.linalg.solve(left, u))
    df = np.append(np.ones(len(u)), float(len(u)))
    return ProportionalHazards((*names, "GLOBAL"), statistic, df, stats.chi2.sf(statistic, df), transform)
