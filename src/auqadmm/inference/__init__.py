"""What an estimate is worth: standard errors, intervals, deviance, how sites differ; from one more reduction."""

from auqadmm.inference.inference import Inference

__all__ = ["Inference"]
