"""Losses, and how to write your own.

The smooth part of a problem is f_j(u) = Σ_i c_i φ(x_iᵀu, y_i) over the rows of block j. Three ways to your own, from
the shortest to the most general:

CustomLoss      one function of PyTorch; derivatives by differentiation
RowLoss         a subclass writes φ, φ' and φ'' of a row: as fast as the built-in ones
Loss            a subclass writes a `Point`, f_j and its derivatives at u: rows of a block may interact

A `Loss` gets the data as a shard, the blocks of one process together. u is (B, m, C): B blocks, m features,
C columns. A shard has flat rows (R of them, those that pad a block have weight 0):

    shard.design.forward(u)            logits of all rows, (B, m, …) → (R, …)
    shard.design.adjoint(z)            its transpose, (R, …) → (B, m, …); adjoint_squared(z): of squared features
    shard.design.sum_rows(x)           sums over the rows of each block, (R, …) → (B, …)
    shard.design.block_of_row          which block a row belongs to, (R,)
    shard.target, shard.row_weight     y and c, (R,); c contains the scale of `reduction`; y (R, k) for a loss that says
                                       target_columns = k
    shard.logits(u)                    logits with the offsets of rows, for losses that say takes_offset = True
    shard.linearize(u)                 the `Point` of the loss at u

`auqadmm.testing.LossSuite` checks a loss of your own.
"""

from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature, SoftmaxCurvature
from auqadmm.blocks.loss import Line, Loss, Point
from auqadmm.blocks.rows import RowLoss
from auqadmm.problem.cox import Cox
from auqadmm.problem.custom_loss import CustomLoss
from auqadmm.problem.families import CLogLog, Gamma, NegativeBinomial, Probit, Tweedie
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial, Poisson, SmoothedHinge
from auqadmm.problem.made_of_losses import OneAgainstRest, SiteIntercepts, Trials
from auqadmm.problem.quantile import Quantile

__all__ = [
    "CLogLog",
    "Cox",
    "CustomLoss",
    "DiagonalCurvature",
    "Gamma",
    "Huber",
    "LeastSquares",
    "Line",
    "Logistic",
    "Loss",
    "Multinomial",
    "NegativeBinomial",
    "OneAgainstRest",
    "Point",
    "Poisson",
    "Probit",
    "Quantile",
    "RowCurvature",
    "RowLoss",
    "SiteIntercepts",
    "SmoothedHinge",
    "SoftmaxCurvature",
    "Trials",
    "Tweedie",
]
