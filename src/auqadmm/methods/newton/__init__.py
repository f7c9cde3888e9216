"""Newton's method on sums over workers: `method` is the iteration, `round` what workers are asked, `working` for which
unknowns, `model` the step, `here` what is known at v."""

from auqadmm.methods.newton.method import Newton

__all__ = ["Newton"]
