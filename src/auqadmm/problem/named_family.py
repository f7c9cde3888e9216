"""Families of generalised linear models by name: "binomial" with link "probit" is the loss `Probit`.

`parameter` is the one number that some families have: k of the negative binomial, the power of Tweedie, delta of Huber,
q of a quantile.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.rows import Loss, RowLoss
from auqadmm.errors import InputError
from auqadmm.problem.families import CLogLog, Gamma, NegativeBinomial, Probit, Tweedie
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Poisson
from auqadmm.problem.quantile import Quantile

FAMILIES: dict[str, dict[str, type[RowLoss]]] = {
    "gaussian": {"identity": LeastSquares},
    "binomial": {"logit": Logistic, "probit": Probit, "cloglog": CLogLog},
    "poisson": {"log": Poisson},
    "gamma": {"log": Gamma},
    "negative-binomial": {"log": NegativeBinomial},
    "tweedie": {"log": Tweedie},
    "huber": {"identity": Huber},
    "quantile": {"identity": Quantile},
}
PARAMETERS = {"negative-binomial": "k", "tweedie": "power", "huber": "delta", "quantile": "q"}
LOGARITHMIC = (Poisson, Gamma, NegativeBinomial, Tweedie)


@dataclass(frozen=True)
class NamedFamily:
    """A family, its link, and its parameter where it has one; None: the default of the loss."""

    name: str
    link: str
    parameter: float | None = None

    @staticmethod
    def of(family: str, link: str | None = None, parameter: float | None = None) -> NamedFamily:
        """The family that a user asks for; `link` None: the first that it has."""
        name = str(family).lower().replace("_", "-")
        if name not in FAMILIES:
            raise InputError(f"Unknown family {family!r}; use {', '.join(FAMILIES)} or a loss such as Tweedie(1.7).")
        links = FAMILIES[name]
        if link is not None and link not in links:
            raise InputError(f"link {link!r} is not offered for family {name!r}; use {' or '.join(links)}.")
        if parameter is not None and name not in PARAMETERS:
            raise InputError(f"Family {name!r} has no parameter; {', '.join(PARAMETERS)} have one.")
        made = NamedFamily(name, link or next(iter(links)), parameter)
        made.loss()  # refuses a parameter that the loss cannot have
        return made

    @staticmethod
    def of_loss(loss: Loss) -> NamedFamily | None:
        """The name of a loss; None where it has none."""
        for name, links in FAMILIES.items():
            for link, kind in links.items():
                if type(loss) is kind:
                    own = PARAMETERS.get(name)
                    return NamedFamily(name, link, None if own is None else float(getattr(loss, own)))
        return None

    def loss(self) -> RowLoss:
        """Sums over rows, as likelihoods are."""
        kind: Any = FAMILIES[self.name][self.link]
        return kind() if self.parameter is None else kind(**{PARAMETERS[self.name]: self.parameter})

    @property
    def labels(self) -> bool:
        """Whether the target is one of two labels."""
        return self.name == "binomial"

    @property
    def searched(self) -> bool:
        """Whether its parameter is found from the rows: k of the negative binomial, where it is not given."""
        return self.name == "negative-binomial" and self.parameter is None

    @property
    def takes_exposure(self) -> bool:
        return FAMILIES[self.name][self.link] in LOGARITHMIC

    def mean(self, z: np.ndarray) -> np.ndarray:
        """The expected target at logits z."""
        return mean_of(self.loss(), torch.from_numpy(z)).numpy()

    def message(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def mean_of(loss: RowLoss, z: Tensor) -> Tensor:
    """The expected target at logits z."""
    if isinstance(loss, Logistic):
        return torch.sigmoid(z)
    if isinstance(loss, Probit):
        return torch.special.ndtr(z)
    if isinstance(loss, CLogLog):
        return -torch.expm1(-torch.exp(z))
    return torch.exp(z) if isinstance(loss, LOGARITHMIC) else z
