"""How far v is from the optimum of the ORIGINAL problem, and how we know (S10; docs/theory.md proves it).

- queries: round 0 (centre, null model, infimum; v and gradients in centred columns), and the maps over blocks whose
  sums are needed
- model: δ, the predicted decrease of one proximal Newton step, from the triangle of the Hessian
- duality: the duality gap, with a free intercept too, and the round it may take; objective, KKT residual and gap
  without a run
- judge: the rule, with its two ways (delta: triangle, products), and what is judged, or why not (point)
- monitor: when a verdict is worth its cost, in the course of a run
"""

from auqadmm.verdict.judge import Judge
from auqadmm.verdict.point import Verdict

__all__ = ["Judge", "Verdict"]
