"""One run at a site: requests of the coordinator, each checked by the policy before and after it is computed.

    open      the coordinator says who it is and what it wants; the site answers with its terms
    plan      the run as it will be: refused here or not at all
    meet      what every site drew for the masks of this run
    columns   names, kinds, levels and labels of the data set; no value of a row
    add       sums over rows for the common scale of columns
    design    sums over rows for a transform of the formula
    features  names of the columns that the formula makes
    encode    the agreed encoding: from now on the data set is one block of numbers
    …         the requests of any worker: engines/driver.py

Sums leave in the clear or masked. What only this site can need again (its part of a checkpoint) is kept here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from auqadmm.checkpoint.run import PackBlocks, UnpackBlocks
from auqadmm.columns import InFrame
from auqadmm.core.state import Blocks
from auqadmm.engines import protocol
from auqadmm.engines.driver import BROUGHT, REQUESTS, Holder
from auqadmm.problem.agreement import attempt
from auqadmm.problem.ingest import InputError, RawBlock
from auqadmm.sites.designs import check_row_set
from auqadmm.sites.hazards import check_grid
from auqadmm.sites.held_out import OwnFolds, check_folds, cut, own_folds, own_training
from auqadmm.sites.policy import (
    LEAVING_SITES,
    Plan,
    Points,
    Policy,
    PolicyError,
    check_plan,
    check_rows,
    check_size,
    check_weights,
)
from auqadmm.sites.rosters import check_roster, remember
from auqadmm.sites.rules import FIGURES, PLAIN, RAISED, RULES, TESTING, Rule, asked_of, own_models, well_made
from auqadmm.sites.tables import SiteTable
from auqadmm.words import visible

OWN_REQUESTS = ("open", "plan", "meet", "columns", "add", "design", "features", "encode")
SESSION_REQUESTS = (*OWN_REQUESTS, *(r for r in REQUESTS if r != "count"))
LARGE = 2.0**40  # stands for a bound that is no bound, in a sum


def _same(x: Tensor) -> Tensor:
    return x


# a row whose conjugate is infinite gives no bound of the gap: that much is told, as a number that can be masked
NO_BOUND: Mapping[str, Callable[[Tensor], Tensor]] = {
    "conjugate": lambda x: torch.where(x.abs() <= LARGE, x, torch.full_like(x, LARGE))
}
PARTS = 500  # of checkpoints that are kept
COUNTS = {"refused"}  # numbers of blocks that a change of state may tell
OF_WEIGHTS = ("itself", "shapes", "padded")
HEX = re.compile("[0-9a-f]{64}")  # the name of a part of a checkpoint
BASELINE = "baseline"
MOST_JUDGED = 2  # the model, and those of the folds
FEWER_BITS = {"reach": 16, "far": 16}  # bits behind the point, for arrays whose numbers are large


class Mask(Protocol):
    """Hides the numbers of one site in a sum: sites/masks.py."""

    hello: bytes

    def meet(self, hellos: Mapping[str, bytes]) -> None: ...
    def mask(self, number: int, label: str, values: np.ndarray, fraction: int | None = None) -> np.ndarray: ...


def _replace(path: Path, data: bytes) -> None:
    """The whole file or none: a site that is killed while it writes finds the old one."""
    part = path.with_name(f"{path.name}.new")
    part.write_bytes(data)
    part.replace(path)


@dataclass
class Budget:
    """What a site has answered today, kept in a file so that a restart does not forget it."""

    path: Path
    rounds: int
    seconds: float
    used: dict[str, Any] = field(default_factory=dict)

    def spend(self, seconds: float, rounds: int = 1) -> None:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        if not self.used:
            self.used = self._read()
        if self.used.get("day") != today:
            self.used = {"day": today, "rounds": 0, "seconds": 0.0}
        self.used["rounds"] += rounds
        self.used["seconds"] += seconds
        if self.used["rounds"] > self.rounds or self.used["seconds"] > self.seconds:
            raise PolicyError("this site has answered as much today as its policy allows")

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, json.dumps(self.used).encode())

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


@dataclass(frozen=True)
class Told:
    """What of one answer goes into the audit."""

    request: str
    operation: str | None
    shapes: Mapping[str, list[int]]
    masked: bool
    error: str | None


class SiteHolder(Holder):
    """One run. `table`: opens a data set by name; `masker`: makes the masks of a run with these sites; `state`: a
    folder of the site's own; `secret`: of its key; `approve`: a person's decision on a plan."""

    def __init__(
        self,
        run: str,
        own: str,
        policy: Policy,
        roster: Mapping[str, str],
        table: Callable[[str], SiteTable],
        masker: Callable[[str, tuple[str, ...]], Mask],
        state: Path,
        secret: bytes,
        approve: Callable[[str, Plan], None] = lambda run, plan: None,
        log: Callable[[str], object] = lambda text: None,
        largest: int = protocol.LARGEST,
    ) -> None:
        super().__init__()
        self.run, self.own, self.policy, self.roster = run, own, policy, roster
        self.open_table, self.masker, self.state, self.secret = table, masker, state, secret
        self.approve, self.log, self.largest = approve, log, largest
        self.plan: Plan | None = None
        self.table: SiteTable | None = None
        self.mask: Mask | None = None
        self.points = Points(policy, set())
        self.folds: OwnFolds | None = None
        self.judged: set[str] = set()
        self.budget = Budget(state / "budget.json", policy.rounds_per_day, policy.seconds_per_day)
        self.told: Told | None = None
        self.number, self.asked = 0, ""
        self._noted: dict[str, Any] = {}

    # ------------------------------------------------------------------ answers
    def __call__(self, message: bytes) -> bytes:
        began = time.perf_counter()
        self._noted = {"request": "?", "operation": None, "shapes": {}, "masked": False}
        answer = attempt(lambda: (None, self._answered(message)))[1]
        answer["to"] = self.number  # else an old answer would look like one to this ask
        data = protocol.dumps(answer)
        if len(data) > self.largest:
            answer = {"error": f"the answer has {len(data)} bytes, more than this site sends at once", "input": True}
            data = protocol.dumps(answer)
        self.told = Told(error=answer.get("error"), **self._noted)
        self.budget.used.setdefault("seconds", 0.0)
        self.budget.used["seconds"] += time.perf_counter() - began
        self.budget.save()
        return data

    def _answered(self, message: bytes) -> object:
        try:
            envelope = self._understood(message)
        except Exception as error:
            self.log(f"run {self.run}: refused a message: {type(error).__name__}: {visible(str(error))}")
            raise
        try:
            if envelope.do not in ("open", "plan") and self.plan is None:
                raise PolicyError("nothing is answered before a plan")
            self.budget.spend(0.0)
            return getattr(self, f"do_{envelope.do}")(*envelope.args)
        except PolicyError as error:
            self.log(f"run {self.run}: refused {self._words(envelope.do)}: {error}")
            raise InputError(f"refused by the policy of {self.own}: {error}.") from None
        except protocol.ProtocolError as error:
            self.log(f"run {self.run}: refused {self._words(envelope.do)}: {visible(str(error))}")
            raise
        except Exception as error:  # the text may hold values of rows: it stays here
            self.log(f"run {self.run}: {self._words(envelope.do)} failed: {type(error).__name__}: {error}")
            raise InputError(
                f"{self.own} could not do {self._words(envelope.do)} ({type(error).__name__}); its log says why"
            ) from None

    def _understood(self, message: bytes) -> protocol.Envelope:
        envelope, self.setup = protocol.opened(message, self.setup, largest=self.largest)
        self._noted["request"] = envelope.do[:40]
        if envelope.do not in SESSION_REQUESTS:
            raise protocol.ProtocolError(f"{envelope.do[:40]!r} is not a request")
        if envelope.number <= self.seen:
            raise protocol.ProtocolError("this message was overtaken by a later one")
        self.seen = self.number = envelope.number
        self.asked = hashlib.sha256(message).hexdigest()  # sites that were asked something else make noise of the sum
        self.versions = {k: x for k, x in self.versions.items() if k in envelope.alive}
        return envelope

    def _words(self, request: str) -> str:
        operation = self._noted["operation"]
        return request if operation is None else f"{request} {operation!r}"

    # ------------------------------------------------------------------ the run
    def do_open(self, data: str) -> dict[str, Any]:
        self.table = self.open_table(data)
        return self.policy.terms() | {"site": self.own, "columns": self.table.header()}

    def do_plan(self, plan: Plan) -> bytes:
        if self.table is None or plan.data != self.table.name:
            raise PolicyError("the plan is of another data set than was opened")
        if self.plan is not None:
            raise PolicyError("a run has one plan")
        check_plan(self.policy, plan, self.own, tuple(self.roster))
        self.table.check_columns([*plan.columns, *plan.others], plan.target)
        check_roster(self.policy, self.state / "rosters.json", plan)
        self.approve(self.run, plan)
        self.plan = plan
        if not plan.masked:
            remember(self.state / "rosters.json", plan)
            return b""
        self.mask = self.masker(self.run, plan.sites)
        return self.mask.hello

    def do_meet(self, hellos: dict[str, bytes]) -> None:
        if self.mask is None or self.plan is None:
            raise PolicyError("this run has no masks")
        check_roster(self.policy, self.state / "rosters.json", self.plan)  # since the plan another run may have begun
        self.mask.meet(hellos)
        remember(self.state / "rosters.json", self.plan)

    # ------------------------------------------------------------------ the data set
    def do_columns(self, asked: Any) -> dict[str, Any]:
        assert self.table is not None
        assert self.plan is not None
        if asked.formula != self.plan.formula or not set(asked.used) <= self.plan.used:
            raise PolicyError("other columns are asked for than the plan declared")
        told = self.table.described(asked)
        if not self.policy.testing:
            check_row_set(self.state / "rows.json", self.table.name, self.table.kept, self.policy.min_rows)
        return told

    def do_add(self, what: str, names: tuple[str, ...], centre: np.ndarray | None) -> object:
        assert self.table is not None
        sums = self.table.added(what, names, centre)
        return self._summed({name: torch.from_numpy(x) for name, x in sums.items()}, False)

    def do_design(self, what: str, key: str, numbers: tuple[float, ...]) -> object:
        assert self.table is not None
        self._noted["operation"] = f"{what[:20]} of {key[:60]}"
        sums = self.table.transformed(what, key, numbers)
        return self._summed({name: torch.from_numpy(x) for name, x in sums.items()}, False)

    def do_features(self, design: Mapping[str, Any]) -> list[str]:
        assert self.table is not None
        return self.table.features(design)

    def do_encode(self, agreed: Any, design: Mapping[str, Any] | None = None) -> int:
        assert self.table is not None
        assert self.plan is not None
        self.brought = [block] = [self.table.block(agreed, design)]
        if self.plan.cv == str(self.policy.folds):
            self.folds = cut(self.policy, self.secret, self.table.name, self.table.kept, self.table.alike())
            check_folds(self.policy, self.folds, block, design is not None)
        return 1

    def do_make(self, posed: Mapping[str, Any], source: Any, rank: int, world: int) -> int:
        if posed.get("keep") is not None:
            assert self.plan is not None
            posed = {**posed, "keep": own_training(posed["keep"], self.plan.cv, self.folds)}
        if source != BROUGHT:
            if not self.policy.testing:
                raise PolicyError("rows come from this site's data sets only")
            return super().do_make(posed, source, rank, world)
        if not self.brought:
            raise PolicyError("no data set is encoded yet")
        brought = self.brought
        count = super().do_make(posed, source, rank, world)
        self.brought = brought  # another problem of the same run takes the same rows
        return count

    def do_settle(self, messages: Any, first: int, dtype: torch.dtype) -> None:
        own = [b for b in self.own_blocks[0] if isinstance(b, RawBlock)]
        super().do_settle(messages, first, dtype)
        if self.policy.testing:
            return
        census, rows = self.shard.census, sum(b.rows for b in own)
        if not rows and self.plan is not None and self.plan.cv == LEAVING_SITES:
            return  # this site is left out: it has nothing to tell
        together = self.mask is not None
        check_size(self.policy, census.features * census.columns, sum(census.rows) if together else rows, together)

    # ------------------------------------------------------------------ operations
    def do_sum(self, fn: Any, at: int | None, shared: object, new: int) -> Any:
        rule = self._allowed("sum", fn, shared, at)
        fn = self._restoring(self._own_folds(fn))
        nothing, out, seconds = super().do_sum(fn, at, shared, new)
        if rule.own and (u := own_models(self.versions[new])) is not None:
            self._weigh(asked_of(fn, shared)[2], list(u))
        return nothing, self._summed(out, rule.leaves == "state"), seconds

    def do_minmax(self, fn: Any, at: int | None, shared: object, new: int) -> Any:
        self._allowed("minmax", fn, shared, at)
        nothing, out, seconds = super().do_sum(fn, at, shared, new)
        self._note(out)
        return nothing, out, seconds

    def do_concat(self, fn: Any, at: int | None) -> dict[str, Tensor]:
        self._allowed("concat", fn, None, at)
        if isinstance(fn, PackBlocks):
            return self._kept(super().do_concat(fn, at))
        out = super().do_concat(fn, at)
        self._note(out)
        return out

    def do_gather(self, fn: Any, at: int | None) -> Tensor:
        self._allowed("gather", fn, None, at)
        out = super().do_gather(self._own_folds(fn), at)
        if asked_of(fn, None)[0] == "digest" and not self.policy.testing:  # of the rows: known to who has the key only
            out = torch.stack([self._blinded(x) for x in out])
        self._note({"": out})
        return out

    def do_peek(self, fn: Any, at: int | None) -> object:
        self._allowed("peek", fn, None, at)
        return super().do_peek(fn, at)

    def do_put(self, x: Tensor, new: int) -> None:
        super().do_put(x, new)

    def _allowed(self, request: str, fn: Any, shared: object, at: int | None) -> Rule:
        """The rule of an operation, once the policy has agreed."""
        name, asked, run = asked_of(fn, shared)
        self._noted["operation"] = name
        rule = RULES.get(name)
        if self.policy.testing and name.startswith(TESTING):
            return Rule("sums")
        if rule is None:
            raise PolicyError(f"{name!r} is not served by sites")
        if request not in rule.by:
            raise PolicyError(f"{name!r} is asked for as a {rule.by[0]} or not at all")
        if not well_made(name, asked[0]):
            raise PolicyError(f"{name!r} has arguments that it does not take here")
        masked = self.mask is not None
        leaves = "sums" if rule.leaves == "figures" and not getattr(asked[0], "bins", True) else rule.leaves
        if leaves == "figures" and not masked and not self.policy.testing:
            raise PolicyError("counts by bins of a score leave as masked sums only")
        if leaves == "figures" and not self.policy.bins:
            raise PolicyError("counts by bins of a score are not given by this site (bins = false)")
        if rule.leaves == "site" and name not in PLAIN and (self.policy.sums_only or masked):
            raise PolicyError(f"{name!r} is of this site alone, and sums only are allowed")
        if name in FIGURES and not self.policy.site_figures:
            raise PolicyError(f"{name!r} are figures of this site alone")
        if name in OF_WEIGHTS and isinstance(self._version(at), Blocks):
            raise PolicyError(f"{name!r} is about weights, not about the whole state of blocks")
        self._judge(name, asked[0])
        if rule.chosen and not self.policy.testing:
            self.points.count(name, leaves)
        if name == BASELINE and not self.policy.testing:
            assert self.plan is not None
            check_grid(self.policy, self.state / "grids.json", self.plan.data, asked[0].grid, self.shard)
        self._weigh(run, rule.models(asked))
        if rule.weights is not None and not self.policy.testing:
            for weights in rule.weights(asked, self.shard if run is None else self.shard.inner(run)):
                check_weights(self.policy, weights, self.shard.loss.kinked)
        return rule

    def _judge(self, name: str, query: Any) -> None:
        """Right and wrong answers are counted at few models: counts at two models differ by the rows between them."""
        if not name.startswith("quality") or self.policy.testing:
            return
        models = getattr(query, "models", query)
        text = models.v.detach().double().cpu().numpy().tobytes() + str(models.folds).encode()
        self.judged.add(hashlib.sha256(text).hexdigest())
        if len(self.judged) > MOST_JUDGED:
            raise PolicyError(f"the quality of more than {MOST_JUDGED} models is not told in one run")

    def _own_folds(self, fn: Any) -> Any:
        return own_folds(fn, "" if self.plan is None else self.plan.cv, self.folds)

    def _weigh(self, run: str | None, models: list[Tensor]) -> None:
        if self.policy.testing:
            return
        shard = self.shard if run is None else self.shard.inner(run)
        for v in models:
            self.points.check(v)
            check_rows(self.policy, shard.linearize(shard.expand(v.to(shard.dtype))))

    # ------------------------------------------------------------------ what leaves
    def _summed(self, out: Mapping[str, Tensor], state: bool) -> Any:
        """Sums as they leave: in the clear, or as limbs of one masked array."""
        if state and set(out) - COUNTS:
            raise PolicyError("what changes the state gives nothing else")
        if state or not out:
            return dict(out)
        out = {name: NO_BOUND.get(name, _same)(self._raised(name, x)) for name, x in out.items()}
        self._note(out)
        for name, x in out.items():
            if self.mask is not None and not bool(torch.isfinite(x).all()):
                raise InputError(f"{self.own}: {name} is not finite, so it cannot be masked")
        if self.mask is None:
            return out
        self._noted["masked"] = True
        limbs = {
            name: self.mask.mask(
                self.number, f"{self.asked} {name}", x.detach().double().cpu().numpy().ravel(), FEWER_BITS.get(name, 64)
            )
            for name, x in out.items()
        }
        return {"limbs": limbs, "shapes": {name: tuple(x.shape) for name, x in out.items()}}

    def _raised(self, name: str, x: Tensor) -> Tensor:
        power = RAISED.get(name)
        if power is None or self.policy.testing:
            return x
        # steps of a factor of two, whose place is another in every answer: who asks with one scale after the other
        # cannot tell where between two steps the largest row is
        drawn = hmac.new(self.secret, f"reach {self.run} {self.number} {name}".encode(), hashlib.sha256).digest()
        moved = int.from_bytes(drawn[:6], "little") / 2**48
        exponent = (x.double().clamp(min=1e-300).log2() / power + moved).ceil() - moved
        if self.mask is not None:
            exponent = exponent.clamp(min=-FEWER_BITS[name] / power)  # what is less would be rounded to nothing
        return torch.where(x > 0, torch.exp2(power * exponent) * (1 + 1e-12), x.double())  # a bound, rounded or not

    def _note(self, out: Mapping[str, Tensor]) -> None:
        self._noted["shapes"] = {name: list(x.shape) for name, x in out.items()}

    def _blinded(self, digest: Tensor) -> Tensor:
        hidden = hmac.new(self.secret, digest.numpy().tobytes(), hashlib.sha256).digest()
        return torch.frombuffer(bytearray(hidden), dtype=torch.uint8)

    # ------------------------------------------------------------------ checkpoints
    def _kept(self, packed: dict[str, Tensor]) -> dict[str, Tensor]:
        """The blocks' part of a checkpoint stays here; the coordinator gets its name."""
        text, arrays = packed["text"].numpy().tobytes(), packed["arrays"].numpy().tobytes()
        if int(packed["sizes"][0, 1]) < 0:
            return packed
        name = hashlib.sha256(text + arrays).hexdigest()
        folder = self.state / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(folder / f"{name}.part", len(text).to_bytes(8, "little") + text + arrays)
        parts = sorted(folder.glob("*.part"), key=lambda path: path.stat().st_mtime)
        for path in parts[:-PARTS]:  # those of runs that were over long ago
            path.unlink(missing_ok=True)
        stub = json.dumps({"index": json.loads(text)["index"], "blocks": name, "solver": None}).encode()
        shown = torch.frombuffer(bytearray(stub), dtype=torch.uint8)
        return {"sizes": torch.tensor([[len(stub), 0]]), "text": shown, "arrays": torch.zeros(0, dtype=torch.uint8)}

    def _restoring(self, fn: Any) -> Any:
        """To put a checkpoint's state in place, this site's own part in place of its name; others as they are."""
        if isinstance(fn, InFrame):
            return replace(fn, fn=self._restoring(fn.fn))
        if not isinstance(fn, UnpackBlocks):
            return fn
        parts = []
        for text, arrays in fn.parts:
            tree = json.loads(text)
            name = str(tree.get("blocks"))
            path = self.state / "checkpoints" / f"{name}.part"
            if HEX.fullmatch(name) and path.is_file():
                data = path.read_bytes()
                length = int.from_bytes(data[:8], "little")
                mine = data[8 : 8 + length], data[8 + length :]
                if hashlib.sha256(b"".join(mine)).hexdigest() == name:
                    text, arrays = mine
            parts.append((text, arrays))
        return UnpackBlocks(fn.registry, tuple(parts))
