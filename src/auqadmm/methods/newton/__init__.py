"""Newton's method on sums over workers: `method` is the iteration and what workers send, `working_set` for which
unknowns, `model` the step, `state` what is known at v, `dual` a bound of the gap."""

from auqadmm.methods.newton.method import Newton

__all__ = ["Newton"]
