"""How far v is from the optimum of the ORIGINAL problem, and how we know (S10; docs/theory.md proves it).

columns.py   round 0: centre, null model, infimum; v and gradients in centred columns
asks.py      what travels: maps over blocks
model.py     δ, the predicted decrease of one proximal Newton step, from the triangle of the Hessian
large.py     an upper bound of δ from Hessian products, where the triangle is too large
duality.py   the duality gap, with a free intercept too
judge.py     the rule: proved, estimated, at the floor of rounding, or none
gate.py      a cheap estimate at the server: is it worth asking?
"""

from auqadmm.core.verdict.judge import Judge
from auqadmm.core.verdict.point import Verdict

__all__ = ["Judge", "Verdict"]
