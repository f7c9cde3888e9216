"""What `method="auto"` does: `cost` evaluates round 0 and estimates, `method` chooses, monitors, switches and
explains."""

from auqadmm.methods.auto.cost import ROUND_COST, CostEstimate, Facts, estimates
from auqadmm.methods.auto.method import Auto, AutoPlan, Change, Choice

__all__ = ["ROUND_COST", "Auto", "AutoPlan", "Change", "Choice", "CostEstimate", "Facts", "estimates"]
