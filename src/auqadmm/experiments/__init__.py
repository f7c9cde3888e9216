"""Experiments: data that is at hand, problems on it, and optima to measure methods against."""

from auqadmm.experiments.compare import GAPS, Run
from auqadmm.experiments.digits import digits_blocks, digits_elastic_net, digits_multinomial
from auqadmm.experiments.reference import Reference, reference

__all__ = [
    "GAPS",
    "Reference",
    "Run",
    "digits_blocks",
    "digits_elastic_net",
    "digits_multinomial",
    "reference",
]
