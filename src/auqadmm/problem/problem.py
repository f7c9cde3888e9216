"""What is solved: minimise over u  Σ_j f_j(u) + g(u), worker j holding its own rows (S1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from auqadmm.blocks.loss import Loss
from auqadmm.blocks.shard import Census, Shard, build_shard
from auqadmm.checks import whole_number
from auqadmm.errors import InputError, InputTypeError
from auqadmm.problem.agreement import Exchange, Tally, alone, census_of, same, together
from auqadmm.problem.ingest import RawBlock, encode, read_blocks, read_reals, source_of
from auqadmm.problem.made_of_losses import SiteIntercepts, loss_of_rows
from auqadmm.problem.regularizers import Regularizer, Zero
from auqadmm.problem.wrappers import FreeIntercept

Read = tuple[tuple[RawBlock, ...], tuple[np.ndarray, ...]]  # blocks, and their targets where these are real numbers


@dataclass(frozen=True, eq=False)
class Problem:
    """A loss, a regularizer and one block of rows per worker.

    Parameters
    ----------
    loss
        The smooth part, e.g. `Multinomial(reduction="sum")`.
    regularizer
        The proximable part g, e.g. `ElasticNet(l1, l2)`; `Zero()` for none.
    blocks
        One tuple `(X, y)`, `(X, y, sample_weight)` or `(X, y, sample_weight, offset)` per worker; sample_weight may be
        None. A row of weight w counts w times. The offset is added to the row's logit: z = x·u + offset. For rates pass
        the logarithm of the exposure (person-years, days at risk). X may be numpy, torch, scipy.sparse or a data
        frame; blocks may have any number of rows, none included. Labels of a classification may be of any kind.
        Blocks that are read by the workers: a list of functions, one per block, that each return such a tuple; a
        tuple `(X, y)` or `(X, y, sample_weight)` of dask arrays or data frames, every chunk of rows a block; a list of
        `dask.delayed`, one per block; an `engines.RayDataset`; or a function `blocks(rank, world)` that every process
        calls for its own. With "torch", a list has the blocks of this process (see `Problem.part`).
    intercept
        Add one unpenalised row to the unknown: the constant term.
    image
        (height, width) or (channels, height, width) if the features are the pixels of an image, in this order.
        Otherwise nothing is assumed; the solution is the same either way, "auq-lr" may need fewer rounds.
    site_intercepts
        Give every block an intercept of its own, in place of `intercept`. It is found and kept at the block: the
        solution is that of one indicator column per block, without these unknowns. For losses of rows with one column.

    Raises
    ------
    InputError
        A block, a label or an option cannot be used; the message names the block, the row and the column.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> problem.classes is None
    True
    >>> labels = [(X[:2], ["no", "yes"]), (X[2:], ["yes", "yes"])]
    >>> aq.Problem(aq.Logistic(), aq.L2(1.0), labels, intercept=True).classes
    array(['no', 'yes'], dtype='<U3')
    >>> try:
    ...     aq.Problem(aq.LeastSquares(), aq.Zero(), [(X[:2], [1.0, float("nan")])])
    ... except aq.InputError as refused:
    ...     print(refused)
    block 0: y[1] is nan; remove or impute rows without a target.
    """

    loss: Loss
    regularizer: Regularizer
    blocks: Any = field(repr=False)
    intercept: bool = False
    image: tuple[int, ...] | None = None
    site_intercepts: bool = False
    census: Census = field(init=False, repr=False)
    _targets: tuple[np.ndarray, ...] = field(init=False, repr=False)
    _first: int = field(init=False, repr=False)
    _keep: Callable[[int, RawBlock], RawBlock] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise InputTypeError(
                f"loss must be one of auqadmm's losses or a CustomLoss, got {type(self.loss).__name__}. "
                "A class of your own inherits from auqadmm.losses.Loss or RowLoss."
            )
        if self.regularizer is None:
            object.__setattr__(self, "regularizer", Zero())
        if not isinstance(self.regularizer, Regularizer):
            raise InputTypeError(
                "regularizer must be one of auqadmm's regularizers or a CustomRegularizer, "
                f"got {type(self.regularizer).__name__}. A class of your own inherits from "
                "auqadmm.regularizers.Regularizer."
            )
        if not isinstance(self.intercept, bool | np.bool_):
            raise InputError(f"intercept must be True or False, got {self.intercept!r}.")
        if self.intercept and not self.loss.takes_intercept:
            raise InputError(f"intercept=True has no place beside {type(self.loss).__name__}: it would change nothing.")
        if not isinstance(self.site_intercepts, bool | np.bool_):
            raise InputError(f"site_intercepts must be True or False, got {self.site_intercepts!r}.")
        if self.site_intercepts or isinstance(self.loss, SiteIntercepts):
            if self.intercept:
                raise InputError("site_intercepts are in place of intercept: leave one of the two out.")
            object.__setattr__(self, "loss", SiteIntercepts(loss_of_rows(self.loss)))
            object.__setattr__(self, "site_intercepts", True)
        object.__setattr__(self, "blocks", source_of(self.blocks))
        if not callable(self.blocks):
            read, message = self.read(read_blocks(self.blocks), 0)
            self._settle(read, [message], 0)

    def __repr__(self) -> str:
        known = vars(self).get("census")
        if known is None:
            size = "blocks that are read where they live"
        else:
            columns = known.features - int(self.intercept)
            size = f"{known.blocks} blocks × {sum(known.rows)} rows × {columns} columns"
            size = size.replace("blocks", "block", 1) if known.blocks == 1 else size
        more = ", intercept" * bool(self.intercept) + f", image {self.image}" * (self.image is not None)
        return f"Problem({self.loss!r}, {self.regularizer!r}, {size}{more})"

    @staticmethod
    def part(
        loss: Loss,
        regularizer: Regularizer,
        blocks: Any,
        intercept: bool = False,
        image: tuple[int, ...] | None = None,
        site_intercepts: bool = False,
    ) -> Problem:
        """The problem whose blocks in this process are `blocks`, other processes having others or none.

        Nothing is read before `solve`: then a process that cannot use its blocks informs all of them.

        Parameters
        ----------
        loss, regularizer, intercept, image, site_intercepts
            As in `Problem`, the same in every process.
        blocks
            The blocks of this process: a list of tuples, which may be empty.

        Returns
        -------
        Problem
            To be given to `solve(…, engine="torch")` in every process.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
        >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
        >>> mine = aq.Problem.part(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2])])
        >>> aq.solve(mine).coef.round(3)
        array([1. , 0.5])
        """
        return Problem(loss, regularizer, lambda rank, world: blocks, intercept, image, site_intercepts)

    def placed(self, rank: int = 0, world: int = 1, exchange: Exchange = alone) -> Problem:
        """This problem with the blocks of one process, and the census of all of them: what an engine's `place` calls.

        Parameters
        ----------
        rank, world
            Number of the process, and how many there are.
        exchange
            Sends one message to all processes, and returns those of all; collective.

        Returns
        -------
        Problem
            This one, where nothing is left to be read.
        """
        if world == 1 and not callable(self.blocks) and self._keep is None:
            return self
        settings = {"loss": self.loss, "regularizer": self.regularizer, "intercept": self.intercept}
        same(exchange, {**settings, "image": self.image})
        made, counts = together(exchange, lambda: self.made(rank, world))
        first = sum(counts[:rank])
        read, messages = together(exchange, lambda: self.read(made, first))
        return self.settled(read, messages, first)

    # ------------------------------------------------------------------ the steps of `placed`
    def elsewhere(self, blocks: Callable[[int, int], Any]) -> Problem:
        """This problem with other blocks, still to be read, and without cached results of its own.

        It is small, and can be sent to the workers.

        Parameters
        ----------
        blocks
            A function of rank and world.

        Returns
        -------
        Problem
            To be placed.
        """
        bare = copy(self)
        for name in ("census", "_targets", "_first"):
            bare.__dict__.pop(name, None)
        object.__setattr__(bare, "blocks", blocks)
        return bare

    def posed(self) -> dict[str, Any]:
        """All but the blocks, by name: what a worker is sent.

        Returns
        -------
        dict
            For `posed_elsewhere`.
        """
        names = ("loss", "regularizer", "intercept", "image", "site_intercepts")
        return {name: getattr(self, name) for name in names} | {"keep": self._keep}

    @staticmethod
    def posed_elsewhere(posed: Mapping[str, Any], blocks: Callable[[int, int], Any]) -> Problem:
        """The problem that `posed` describes, with blocks of this process.

        Parameters
        ----------
        posed
            What `posed` returned elsewhere.
        blocks
            A function of rank and world.

        Returns
        -------
        Problem
            To be placed.
        """
        more = dict(posed)
        keep = more.pop("keep", None)
        problem = Problem(blocks=blocks, **more)
        return problem if keep is None else problem.keeping(keep)

    def keeping(self, keep: Callable[[int, RawBlock], RawBlock]) -> Problem:
        """This problem with some of the rows of its blocks, selected where they are read; its classes stay the same.

        Parameters
        ----------
        keep
            A function of the number of a block and the block, to be called where the block lives.

        Returns
        -------
        Problem
            To be placed.
        """
        some = self.elsewhere(self.blocks)
        object.__setattr__(some, "_keep", keep)
        return some

    def made(self, rank: int, world: int) -> tuple[Sequence[Any], int]:
        """The blocks of one process as given: the first step of `placed`.

        Parameters
        ----------
        rank, world
            Number of the process, and how many there are.

        Returns
        -------
        blocks, count
            Not yet checked.
        """
        made = self.blocks(rank, world) if callable(self.blocks) else self.blocks
        return (made, len(made)) if isinstance(made, Sequence) else (read_blocks(made), 0)  # raises a clear error

    def read(self, made: Sequence[Any], first: int) -> tuple[Read, dict[str, Any]]:
        """The blocks of one process, checked: the second step of `placed`.

        Parameters
        ----------
        made
            Blocks as given.
        first
            The number of the first of them among all blocks.

        Returns
        -------
        read, message
            Blocks with their targets, labels still to be encoded; and what other processes must know of them.

        Raises
        ------
        InputError
            A block cannot be used; the message names it.
        """
        blocks = read_blocks(_numbered(made, first), first)
        labels = Tally.of(blocks, self.loss).labels
        if self._keep is not None:
            blocks = tuple(self._keep(first + j, b) for j, b in enumerate(blocks))
        targets = tuple(self._reals(b) for b in blocks) if self.loss.target_kind == "real" else ()
        return (blocks, targets), replace(Tally.of(blocks, self.loss, targets), labels=labels).message()

    def settled(self, read: Read, messages: Sequence[Mapping[str, Any]], first: int) -> Problem:
        """The problem with the blocks of one process, and the census of all: the last step of `placed`.

        Parameters
        ----------
        read
            The blocks of this process.
        messages
            Those of all processes, in their order.
        first
            The number of the first of its blocks among all.

        Returns
        -------
        Problem
            Whose `census` is known.

        Raises
        ------
        InputError
            The blocks of different processes do not fit together.
        """
        placed = copy(self)
        object.__setattr__(placed, "_keep", None)  # done
        placed._settle(read, messages, first)
        return placed

    def _settle(self, read: Read, messages: Sequence[Mapping[str, Any]], first: int) -> None:
        blocks, targets = read
        census = census_of([Tally.read(m) for m in messages], self.loss, bool(self.intercept))
        if isinstance(self.loss, SiteIntercepts) and census.columns > 1:
            raise InputError(
                f"site_intercepts needs a loss of one column, and {type(self.loss.inner).__name__} has one per class."
            )
        features = census.features - int(self.intercept)
        self.regularizer.check(features)
        if self.image is not None:
            object.__setattr__(self, "image", _image(self.image, features))
        if census.classes is not None:
            targets = tuple(self._codes(b, census.classes) for b in blocks)
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "census", census)
        object.__setattr__(self, "_targets", targets)
        object.__setattr__(self, "_first", first)

    @property
    def g(self) -> Regularizer:
        """The regularizer on the whole unknown: an intercept row is unpenalised."""
        return FreeIntercept(self.regularizer) if self.intercept else self.regularizer

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the features, where the blocks of this process are data frames."""
        blocks = () if callable(self.blocks) else self.blocks
        return next((b.columns for b in blocks if isinstance(b, RawBlock) and b.columns is not None), None)

    @property
    def classes(self) -> np.ndarray | None:
        """The labels in the order of the model's columns (two-class losses: negative, positive)."""
        return self.census.classes

    def shard(self, dtype: torch.dtype, device: torch.device) -> Shard:
        """The blocks of this process, placed on one device.

        Parameters
        ----------
        dtype, device
            Of the arithmetic on blocks.

        Attributes
        ----------
        process without blocks gets one without rows, so that it runs the same code; its engine ignores it.

        Returns
        -------
        Shard
            All blocks of the process as one object.
        """
        blocks, targets, first = self.blocks, self._targets, self._first
        if not blocks:
            classes, features = self.census.classes, self.census.features - int(self.intercept)
            columns = self.loss.target_columns
            empty = np.zeros(0 if columns == 1 else (0, columns)) if classes is None else classes[:0]
            blocks, first = (RawBlock("no block", np.zeros((0, features)), empty, np.zeros(0)),), 0
            targets = (empty if classes is None else self._codes(blocks[0], classes),)
        index = range(first, first + len(blocks))
        return build_shard(blocks, targets, self.loss, self.census, index, dtype, device)

    def _reals(self, block: RawBlock) -> np.ndarray:
        return self.loss.arranged(block.name, read_reals(block.name, block.y, self.loss.target_columns))

    def _codes(self, block: RawBlock, classes: np.ndarray) -> np.ndarray:
        codes = encode(block, classes)
        return 2.0 * codes - 1.0 if self.loss.target_kind == "binary" else codes

    def __getattr__(self, name: str) -> Any:
        if name in ("census", "_targets", "_first"):
            raise InputError(
                f"{name} is not known yet: the blocks of this problem are made where they live, when `solve` begins."
            )
        raise AttributeError(f"Problem has no attribute {name!r}.")


def _numbered(blocks: Sequence[Any], first: int) -> Sequence[Any]:
    """Blocks that were read as a problem of their own, with their numbers among all blocks."""
    return [
        replace(b, name=f"block {first + j}") if isinstance(b, RawBlock) and b.name == f"block {j}" else b
        for j, b in enumerate(blocks)
    ]


def _image(shape: Iterable[float], features: int) -> tuple[int, ...]:
    try:
        lengths = tuple(whole_number("image", length, least=1) for length in shape)
    except (TypeError, ValueError):
        lengths = ()
    if len(lengths) not in (2, 3):
        raise InputError(f"image must be (height, width) or (channels, height, width), got {shape!r}.")
    if math.prod(lengths) != features:
        raise InputError(
            f"image={lengths} has {math.prod(lengths)} pixels but the blocks have {features} features; "
            "give (height, width) or (channels, height, width)."
        )
    return lengths
