"""A coordinator with the right key that wants more than it may have, over TLS, from sites that are at work.

Everything that it asks for is refused in one sentence, which is in the site's log and in its audit file; the site lives
on, and its part in an honest fit is what it was.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import auqadmm as aq
from auqadmm.cli import sites as at_sites
from auqadmm.core.reduce import score
from auqadmm.engines import operations, protocol
from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Task, prepare
from auqadmm.sites.audit import read_audit
from auqadmm.sites.keys import read_key
from auqadmm.sites.policy import Plan
from auqadmm.sites.wire import label_of, sealed
from tests.sites.inside import same_model
from tests.sites.people import NAMES, Town, command
from tests.sites.places import until

pytestmark = pytest.mark.timeout(200)

FEATURES = ("age", "bmi", "marker", "stage")
TASK, SETTINGS = Task("logistic", 0.0, 0.01), Settings()
ROLES = Roles(target="sick", features=FEATURES)
TIGHT = {"certificate_tol": 1e-12, "max_iter": 100}
RULES = 'masks = "required"\nmin_sites = 2'


class Traitor:
    """The coordinator, and what can be seen of the sites: `log` of one by name."""

    def __init__(self, town: Town, sites: aq.Sites, log: Callable[[str], str]) -> None:
        self.town, self.sites, self.log = town, sites, log

    def begin(self, plan: bool = True) -> None:
        """An honest beginning, in which nothing is wrong yet; with or without a plan."""
        if plan:
            at_sites.prepared(self.sites, "heart", "logistic", "newton", ROLES, SETTINGS, TASK)
            return
        self.sites.close()
        self.sites.study = self.sites.connect("heart")
        self.sites.study.open("heart")

    def send(self, message: bytes, name: str = "lyon") -> str:
        """The sentence that comes back."""
        study = self.sites.study
        assert study is not None
        study.ledger.asking("hostile")
        answer = study.link.call({name: message}, 30.0)[name]
        assert isinstance(answer, bytes), answer
        found = protocol.loads(answer)
        assert "error" in found, found
        return str(found["error"])

    def ask(self, *request: Any) -> str:
        study = self.sites.study
        assert study is not None
        study.calls += 1
        return self.send(protocol.request(study.calls, set(), request[0], request[1:], (0, None))[0])

    def placed(self) -> int:
        """Go on to where sums can be asked for; the number of unknowns."""
        self.begin()
        problem = aq.Problem(aq.Logistic(reduction="pooled"), aq.L2(0.01), self.sites.last, intercept=True)
        return int(self.sites.place(problem, torch.float64, torch.device("cpu")).census.features)

    def rows(self) -> pd.DataFrame:
        return pd.read_csv(self.town.folder / "lyon.csv")


# ---------------------------------------------------------------------- what is asked for: the sentence that comes back
def one_row(t: Traitor) -> str:
    """A model at which the oldest patient alone is undecided."""
    v = torch.zeros(t.placed(), 1, dtype=torch.float64)
    assert t.sites.study is not None
    encoding = t.sites.study.agreed.encoding  # type: ignore[union-attr]
    place = encoding.features.index("age")
    z = (t.rows()["age"] - encoding.mean[place]) / encoding.scale[place]
    v[place], v[-1] = 300.0, -300.0 * z.max()
    return t.ask("sum", score, None, v, 99)


def by_another_door(t: Traitor) -> str:
    return t.ask("minmax", score, None, torch.zeros(t.placed(), 1, dtype=torch.float64), 99)


def plan(t: Traitor, **other: Any) -> str:
    t.begin(plan=False)
    usual = Plan("heart", "logistic", "newton", NAMES, True, FEATURES, "sick")
    return t.ask("plan", replace(usual, **other))


def other_columns(t: Traitor) -> str:
    t.begin()
    data = aq.SiteData("heart", target="sick", features=(*FEATURES, "rare"))
    return t.ask("columns", data.wanted)


def formula(t: Traitor, text: str, features: tuple[str, ...]) -> str:
    """The plan is agreed to; what the formula makes of rows is not."""
    t.begin(plan=False)
    study, data = t.sites.study, aq.SiteData("heart", target="sick", features=features)
    assert study is not None
    wanted = study.plan("logistic", "newton", replace(data.wanted, formula=text or None))
    with pytest.raises(aq.InputError) as error:
        study.prepare(wanted)
    assert "refused by the policy" in str(error.value)
    lines = [line.error for line in read_audit(t.town.folder / "lyon.jsonl")]
    assert "site lyon" in str(error.value)
    return lines[-1]


def alone(t: Traitor) -> str:
    second = float(np.sort(t.rows()["age"])[-2])
    return formula(t, f"sick ~ bmi + I(age > {second!r})", ("bmi", "age"))


def own_folds(t: Traitor) -> str:
    t.placed()
    folds = operations.thing(operations.CLASSES["Folds"]).of(5, 0, 3)
    keep = operations.thing(operations.CLASSES["Training"])(folds, 0)
    problem = aq.Problem(aq.Logistic(reduction="pooled"), aq.L2(0.01), t.sites.last, intercept=True)
    return t.ask("make", problem.posed() | {"keep": keep}, "brought", 0, 3)


def path(t: Traitor) -> str:
    t.placed()
    problem = aq.Problem(aq.Logistic(reduction="pooled"), aq.L2(0.01), t.sites.last, intercept=True)
    return t.ask("make", problem.posed(), "/etc/passwd", 0, 3)


def raw(text: bytes, length: int | None = None, arrays: bytes = b"") -> Callable[[Traitor], str]:
    def sent(t: Traitor) -> str:
        t.begin(plan=False)
        return t.send((len(text) if length is None else length).to_bytes(8, "little") + text + arrays)

    return sent


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/auqadmm-was-here",)


def hidden_pickle(t: Traitor) -> str:
    """In the place of an argument."""
    t.begin(plan=False)
    assert t.sites.study is not None
    t.sites.study.calls += 1
    head = {"number": t.sites.study.calls, "alive": [], "setup": None, "knows": None, "do": "open"}
    data = np.frombuffer(pickle.dumps(Evil()), np.uint8)
    return t.send(protocol.message({**head, "with": [{"pickle": "x"}]}, {"x": data}))


ATTACKS: dict[str, tuple[Callable[[Traitor], str], str]] = {
    "one row": (one_row, "few rows make up the curvature"),
    "another door": (by_another_door, "is asked for as a sum or not at all"),
    "a column that is never used": (lambda t: plan(t, columns=("age", "patient")), "no column 'patient' for others"),
    "columns beyond the plan": (other_columns, "other columns are asked for than the plan declared"),
    "a tiny cell": (lambda t: formula(t, "", ("age", "rare")), "column 'rare' has 1 value with fewer than 3 rows"),
    "another roster": (lambda t: plan(t, sites=NAMES[:2]), "the difference of the sums would show oslo alone"),
    "in the clear": (lambda t: plan(t, masked=False), "the policy asks for masked sums"),
    "a formula for one row": (alone, "has 1 value with fewer than 3 rows"),
    "folds of its own": (own_folds, "rows are not selected by others"),
    "a path": (path, "rows come from this site's data sets only"),
    "a pickle": (raw(pickle.dumps(Evil())), "a message cannot be read"),
    "a pickle as an argument": (hidden_pickle, "an entry is not understood"),
    "deep JSON": (raw(b"[" * 100_000), "a message cannot be read"),
    "two gigabytes": (raw(b"{}", 1 << 31), "a message is cut off"),
    "two gigabytes of arrays": (raw(b"{}", arrays=(1 << 31).to_bytes(8, "little")), "a message cannot be read"),
    "no request": (lambda t: (t.begin(plan=False), t.ask("eval" * 5000))[1], "is not a request"),
}


def honest(t: Traitor) -> None:
    ready, method = at_sites.prepared(t.sites, "heart", "logistic", "newton", ROLES, SETTINGS, TASK)
    found = aq.solve(ready.problem(TASK), method, t.sites, **TIGHT)
    known = prepare([t.town.folder / f"{name}.csv" for name in NAMES], ROLES, SETTINGS, TASK)
    same_model(found.v, aq.solve(known.problem(TASK), "newton", **TIGHT).v)


@contextmanager
def traitor(folder: Path, processes: bool) -> Iterator[Traitor]:
    town = Town(folder, dict.fromkeys(NAMES, RULES))
    for name in NAMES:
        frame = pd.read_csv(folder / f"{name}.csv")
        frame.assign(rare=["x", "x", *["y"] * (len(frame) - 2)]).to_csv(folder / f"{name}.csv", index=False)
    with ExitStack() as stack:
        if processes:
            running = {}
            for name in NAMES:
                file = stack.enter_context((folder / f"{name}.log").open("w"))
                running[name] = command("site", folder / f"{name}.toml", stdout=file, stderr=file)
                stack.callback(running[name].wait, 20)
                stack.callback(running[name].terminate)
        else:
            for name in NAMES:
                town.start(name)
                stack.callback(town.stop, name)
        sites = stack.enter_context(aq.Sites(folder / "sites.toml"))
        yield Traitor(
            town, sites, lambda n: (folder / f"{n}.log").read_text() if processes else "\n".join(town.logs[n])
        )
        assert not processes or all(process.poll() is None for process in running.values())


def attacked(t: Traitor) -> None:
    honest(t)
    for name, (attack, says) in ATTACKS.items():
        before = len(t.log("lyon"))
        told = attack(t)
        assert says in told, (name, told)
        assert "\n" not in told, name
        assert len(told) < 500, name
        *_, line = read_audit(t.town.folder / "lyon.jsonl")
        assert line.error == told, name
        assert not line.shapes, name
        assert len(line.request) <= 40
        new = t.log("lyon")[before:]
        assert "refused" in new or "could not do" in new, (name, new)
        assert not Path("/tmp/auqadmm-was-here").exists()
    honest(t)


def test_a_coordinator_that_asks_for_more_than_it_may_have(tmp_path: Path) -> None:
    with traitor(tmp_path, processes=False) as t:
        attacked(t)


@pytest.mark.campaign
def test_the_same_of_sites_that_are_processes(tmp_path: Path) -> None:
    with traitor(tmp_path, processes=True) as t:
        attacked(t)


def test_two_gigabytes_are_announced_by_the_coordinator(tmp_path: Path) -> None:
    """Signed as it should be: the site reads none of it, and says so."""
    town = Town(tmp_path)
    boss = read_key(tmp_path / "boss.key", "boss")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "127.0.0.1.crt", tmp_path / "127.0.0.1.key")
    body = json.dumps({"seat": "0" * 32, "quiet": 3.0}).encode()

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
                with context.wrap_socket(near, server_side=True) as opened:
                    head = opened.recv(65536).split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
                    asked = label_of({k.lower(): v for k, v in (line.split(": ", 1) for line in head)})[0]
                    signed = sealed(boss, "welcome", asked.site, asked.run, asked.number, asked.stamp, body)
                    lines = "".join(f"{k}: {v}\r\n" for k, v in signed.items())
                    opened.sendall(f"HTTP/1.1 200 OK\r\n{lines}content-length: {1 << 31}\r\n\r\n".encode() + body)
                    time.sleep(0.2)
            except OSError:
                if listening.fileno() < 0:
                    return

    with socket.create_server(("127.0.0.1", town.port)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        town.start("lyon")
        try:
            until(lambda: any("2147483648 bytes" in line for line in town.logs["lyon"]), 20)
        finally:
            town.stop("lyon")
    assert all(line.startswith(("refused: ", "https://")) for line in town.logs["lyon"])
    assert not list(read_audit(tmp_path / "lyon.jsonl"))
