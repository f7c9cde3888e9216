"""Newton's method on sums over workers: `method` is the iteration and what workers send, `working_set` for which
unknowns, with a bound of the gap, `model` the step, `state` what is known at v."""

from auqadmm.methods.newton.method import Newton

__all__ = ["Newton"]
