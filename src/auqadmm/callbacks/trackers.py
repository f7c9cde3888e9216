"""The numbers of every iteration as curves in TensorBoard and as metrics in MLflow."""

from __future__ import annotations

import math
import time
from os import PathLike, fspath
from types import TracebackType
from typing import Any

from auqadmm.core.history import Row
from auqadmm.core.solve import Iteration
from auqadmm.errors import InputError, InputTypeError


class TensorBoard:
    """Writes every iteration to an event file in `logdir`: `tensorboard --logdir LOGDIR` shows it while it runs.

    Parameters
    ----------
    logdir
        A folder, one per run; created if needed.
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
        self._writer.flush()  # readers see the last iteration, even without `close`

    def close(self) -> None:
        """Close the file; `with` does it.

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


class MLflow:
    """Logs every iteration as metrics of one MLflow run, without touching MLflow's global state.

    Parameters
    ----------
    experiment
        Its name; created if needed.
    run_name
        Of the new run; MLflow invents one if there is none.
    run_id
        Log into this run instead, e.g. `mlflow.active_run().info.run_id`; it stays open.
    tracking_uri
        The tracking server; MLflow's default if not given.

    Raises
    ------
    ImportError
        MLflow is not installed.

    Examples
    --------
    >>> import auqadmm as aq
    >>> with aq.callbacks.MLflow("hospitals") as log:  # doctest: +SKIP
    ...     aq.solve(problem, callbacks=[log])
    """

    def __init__(
        self,
        experiment: str = "auqadmm",
        *,
        run_name: str | None = None,
        run_id: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        except ImportError:
            raise ImportError("callbacks.MLflow needs mlflow: pip install 'auqadmm[mlflow]'.") from None
        self._metric = Metric
        self._client: Any = MlflowClient(tracking_uri=tracking_uri)
        self._own = run_id is None
        self._begun = False
        if run_id is None:
            known = self._client.get_experiment_by_name(experiment)
            where = self._client.create_experiment(experiment) if known is None else known.experiment_id
            run_id = self._client.create_run(where, run_name=run_name).info.run_id
        self.run_id: str = run_id

    def __call__(self, event: Iteration) -> None:
        if not self._begun:
            self._client.set_tag(self.run_id, "auqadmm.method", event.method)
            self._begun = True
        now, step = int(1000 * time.time()), event.row.iteration
        metrics = [self._metric(name, x, now, step) for name, x in scalars(event.row).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self, failed: bool = False) -> None:
        """End the run; `with` does it.

        Parameters
        ----------
        failed
            Mark it as failed.

        Examples
        --------
        >>> log.close()  # doctest: +SKIP
        """
        if self._own:
            self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
            self._own = False

    def __enter__(self) -> MLflow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)


NAMES = (
    "objective",
    "kkt",
    "primal_residual",
    "dual_residual",
    "eps_primal",
    "eps_dual",
    "rounds",
    "bytes",
    "hvps",
    "seconds",
)


def scalars(row: Row) -> dict[str, float]:
    """By name, the finite ones."""
    values = {name: getattr(row, name) for name in NAMES}
    numbers = {name: float(x) for name, x in values.items() if x is not None and math.isfinite(x)}
    return numbers | {"failed_blocks": float(len(row.failed_blocks))}
