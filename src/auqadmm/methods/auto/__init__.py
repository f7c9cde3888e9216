"""What `method="auto"` does: `facts` evaluates round 0, `cost` estimates, `method` chooses, monitors and switches,
`plan` records and explains."""

from auqadmm.methods.auto.cost import ROUND_COST, CostEstimate, Facts, estimates
from auqadmm.methods.auto.method import Auto
from auqadmm.methods.auto.plan import Change, Choice, Plan

__all__ = ["ROUND_COST", "Auto", "Change", "Choice", "CostEstimate", "Facts", "Plan", "estimates"]
