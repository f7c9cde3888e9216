"""Errors whose text is a sentence for the user: all of them `AuqadmmError`, and the kind that Python has for it."""

from __future__ import annotations


class AuqadmmError(Exception):
    """The base of all errors that auqadmm raises on purpose; the message says what to do.

    Examples
    --------
    >>> import auqadmm as aq
    >>> try:
    ...     aq.L2(-1.0)
    ... except aq.AuqadmmError as refused:
    ...     print(type(refused).__name__)
    InputError
    """


class InputError(AuqadmmError, ValueError):
    """Something in the user's input cannot be used; the message says what, where and what to do.

    Examples
    --------
    >>> import auqadmm as aq
    >>> try:
    ...     aq.Problem(aq.LeastSquares(), aq.Zero(), [([[1.0]], [float("nan")])])
    ... except aq.InputError as refused:
    ...     print(refused)
    block 0: y[0] is nan; remove or impute rows without a target.
    """

    shared: str | None = None  # the message as other processes may read it, where it quotes a value of a row


class InputTypeError(InputError, TypeError):
    """An argument is the wrong kind of object, such as a number where a function belongs.

    Examples
    --------
    >>> import auqadmm as aq
    >>> try:
    ...     aq.CustomRegularizer(1, 2)
    ... except aq.InputTypeError as refused:
    ...     print(isinstance(refused, TypeError))
    True
    """
