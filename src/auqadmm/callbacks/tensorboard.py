"""Curves in TensorBoard."""

from __future__ import annotations

import time
from os import PathLike, fspath
from types import TracebackType
from typing import Any

from auqadmm.callbacks.scalars import scalars
from auqadmm.core.solve import Iteration
from auqadmm.errors import InputError, InputTypeError


class TensorBoard:
    """Writes every iteration to an event file in `logdir`: `tensorboard --logdir LOGDIR` shows it while it runs.

    Parameters
    ----------
    logdir
        A folder, one per run; made if need be.
    prefix
        In front of the names of the curves.

    Raises
    ------
    ImportError
        TensorBoard is not installed.

    Examples
    --------
    >>> import auqadmm as aq
    >>> with aq.callbacks.TensorBoard("runs/first") as board:  # doctest: +SKIP
    ...     aq.solve(problem, callbacks=[board])
    """

    def __init__(self, logdir: str | PathLike[str], prefix: str = "auqadmm/") -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise ImportError("callbacks.TensorBoard needs tensorboard: pip install 'auqadmm[tensorboard]'.") from None
        if not isinstance(logdir, str | PathLike):
            raise InputTypeError(f"logdir must be a folder's path, got {logdir!r}.")
        self.logdir, self.prefix = fspath(logdir), prefix
        self._event, self._summary = Event, Summary
        try:
            self._writer: Any = EventFileWriter(self.logdir)
        except OSError as error:
            raise InputError(f"TensorBoard cannot write to {self.logdir}: {error.strerror or error}.") from None

    def __call__(self, event: Iteration) -> None:
        if self._writer is None:
            raise InputError(f"The TensorBoard callback of {self.logdir} is closed; make a new one for a new run.")
        values = [self._summary.Value(tag=self.prefix + k, simple_value=x) for k, x in scalars(event.row).items()]
        step = event.row.iteration
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()  # whoever looks sees the last iteration, and so does who forgets to close

    def close(self) -> None:
        """No more iterations; `with` does it.

        Examples
        --------
        >>> board.close()  # doctest: +SKIP
        """
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
