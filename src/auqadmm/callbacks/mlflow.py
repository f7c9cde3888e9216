"""Metrics in MLflow."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from auqadmm.callbacks.scalars import scalars
from auqadmm.core.solve import Iteration


class MLflow:
    """Logs every iteration as metrics of one MLflow run, without touching MLflow's global state.

    Parameters
    ----------
    experiment
        Its name; made if need be.
    run_name
        Of the new run; MLflow invents one if there is none.
    run_id
        Log into this run instead, e.g. `mlflow.active_run().info.run_id`; it stays open.
    tracking_uri
        Where; MLflow's own choice by default.

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
            found = self._client.get_experiment_by_name(experiment)
            where = self._client.create_experiment(experiment) if found is None else found.experiment_id
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
        """The run is over; `with` does it.

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
