"""How far v is from the optimum of the ORIGINAL problem, and how we know (S10; docs/theory.md proves it).

- moments: round 0: centre, null model, infimum; v and gradients in centred columns
- queries: the maps over blocks whose sums are needed
- model: δ, the predicted decrease of one proximal Newton step, from the triangle of the Hessian
- large: an upper bound of δ from Hessian products, where the triangle is too large
- duality: the duality gap, with a free intercept too, and the round it may take
- judge: the rule, with its two ways (triangle, products), what is judged (point) and why not (sentences)
- gate, monitor: when a verdict is worth its cost, in the course of a run
- certifier: objective, KKT residual and gap without a run
"""

from auqadmm.verdict.judge import Judge
from auqadmm.verdict.point import Verdict

__all__ = ["Judge", "Verdict"]
