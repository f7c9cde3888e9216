"""One row per iteration. The clock never includes evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from auqadmm.core.reduce import Traffic


@dataclass(frozen=True)
class Row:
    """What was known after one iteration. Counters are cumulative; None: not evaluated or not defined.

    `rounds`, `bytes` and `hvps` are the totals until this iterate was known; in the last row of a finished run they
    are all that the workers did, from round 0 to the last certificate. `bytes` = `bytes_up` + `bytes_down` is the
    logical payload of one worker; `hvps` counts Hessian-vector products over all blocks, or what reads the data as
    often; `failed_blocks` names the blocks whose local solve missed its tolerance in this iteration.
    `rounds_verdict` are the rounds among them that verdicts took;  `reductions` is how often workers were called at all
    when the row was written, evaluation and gathers included. `relative` is the bound of
    the relative gap, in iterations that were judged; `expected` is the server's guess of it in the others, which
    only decides when to run a verdict.
    """

    iteration: int
    objective: float | None
    primal_residual: float | None
    dual_residual: float | None
    eps_primal: float | None
    eps_dual: float | None
    kkt: float | None
    seconds: float
    rounds: int
    bytes: int
    bytes_up: int
    bytes_down: int
    hvps: int
    failed_blocks: tuple[str, ...] = ()
    rounds_verdict: int = 0
    reductions: int = 0
    relative: float | None = None
    expected: float | None = None


class History:
    """The rows of a run, oldest first: `history[-1].kkt`, `history.column("objective")`, `history.to_pandas()`.

    Parameters
    ----------
    rows
        One `Row` per iteration.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> history = aq.solve(problem, "lbfgs").history
    >>> len(history) == history[-1].iteration
    True
    >>> history[-1].rounds >= len(history)
    True
    >>> history.columns[:3]
    ('iteration', 'objective', 'primal_residual')
    """

    columns = tuple(f.name for f in fields(Row))

    def __init__(self, rows: tuple[Row, ...] = ()) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, k: int) -> Row:
        return self.rows[k]

    def __repr__(self) -> str:
        return f"History({len(self)} iterations)"

    def counted(self, traffic: Traffic) -> History:
        """With the total communication in the last row.

        Parameters
        ----------
        traffic
            What the engine counted: rounds, numbers up and down.

        Returns
        -------
        History

        Examples
        --------
        >>> import auqadmm as aq
        >>> len(aq.History().counted(None))
        0
        """
        if not self.rows:
            return self
        t = traffic
        counts: dict[str, Any] = {"rounds": t.rounds, "bytes": t.up + t.down, "bytes_up": t.up, "bytes_down": t.down}
        counts |= {"rounds_verdict": t.verdict, "reductions": t.reductions}
        return History((*self.rows[:-1], replace(self.rows[-1], **counts)))

    def column(self, name: str) -> list[Any]:
        """All values of one column.

        Parameters
        ----------
        name
            One of `History.columns`.

        Returns
        -------
        list
            One value per iteration; None where it was not evaluated.

        Raises
        ------
        KeyError
            There is no such column; the message names those there are.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
        >>> aq.solve(problem, "lbfgs").history.column("iteration")[:3]
        [1, 2, 3]
        """
        if name not in self.columns:
            raise KeyError(f"No column {name!r} in the history; there are {', '.join(self.columns)}.")
        return [getattr(row, name) for row in self.rows]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per iteration, by column.

        Returns
        -------
        list of dict

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
        >>> rows = aq.solve(problem, "lbfgs").history.to_dicts()
        >>> rows[0]["iteration"], sorted(rows[0])[:3]
        (1, ['bytes', 'bytes_down', 'bytes_up'])
        """
        return [asdict(row) for row in self.rows]

    def to_pandas(self) -> pd.DataFrame:
        """A data frame, one line per iteration (needs pandas: `pip install auqadmm[pandas]`).

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            pandas is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
        >>> frame = aq.solve(problem, "lbfgs").history.to_pandas()
        >>> list(frame.columns[:3])
        ['iteration', 'objective', 'primal_residual']
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("history.to_pandas() needs pandas: pip install 'auqadmm[pandas]'.") from None
        return pandas.DataFrame(self.to_dicts(), columns=list(self.columns))


class Clock:
    """Seconds spent in `with clock:` blocks, and since `began` (a time of `time.perf_counter`)."""

    def __init__(self, began: float | None = None) -> None:
        self.seconds = 0.0
        self._began = time.perf_counter() if began is None else began
        self._entered = 0.0

    def __enter__(self) -> Clock:
        self._entered = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._entered

    def since(self) -> Clock:
        """A clock that has measured nothing yet and began when this one did."""
        return Clock(self._began)

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._began
