"""How good a model is: accuracy, AUC, calibration, explained deviance, errors; of all sites by sums, and of each."""

from auqadmm.quality.quality import Quality

__all__ = ["Quality"]
