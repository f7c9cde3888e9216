"""Regularizers, and the base class of your own.

A regularizer g is given by its value and by its proximal map in a diagonal metric,

    prox(s, K) = argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩

`CustomRegularizer(value, prox)` makes one of two functions; a subclass of `Regularizer` may define more: its conjugate
(duality gaps), `separable` (the fast consensus step), `strong_convexity`. `auqadmm.testing.RegularizerSuite` checks it.
"""

from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L1, L2, Box, ElasticNet, NonNegative, Regularizer, Zero
from auqadmm.problem.wrappers import CustomRegularizer, FreeIntercept

__all__ = [
    "L1",
    "L2",
    "Box",
    "CustomRegularizer",
    "ElasticNet",
    "FreeIntercept",
    "GroupLasso",
    "NonNegative",
    "Regularizer",
    "Zero",
]
