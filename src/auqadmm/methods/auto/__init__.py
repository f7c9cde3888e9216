"""What `method="auto"` does: `cost` evaluates round 0 and estimates, `method` chooses, monitors, switches and
explains."""

from auqadmm.methods.auto.cost import ROUND_COST, CostEstimate, Facts, estimates
from auqadmm.methods.auto.method import Auto, Change, Choice, Plan

__all__ = ["ROUND_COST", "Auto", "Change", "Choice", "CostEstimate", "Facts", "Plan", "estimates"]
