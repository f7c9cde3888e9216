"""Sites and a coordinator as processes, each in a network of its own: real keys, real TLS, real cables to cut.

One process has loaded everything and forks all others, so that starting one again takes no time. Every site and the
coordinator have a network namespace, joined by a bridge in another one; nothing of this machine's network is touched.
Where namespaces cannot be made (they need root), all are on loopback, and no cable can be cut.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from auqadmm.sites.keys import make_certificate, make_key
from auqadmm.sites.serving import run_site
from auqadmm.sites.settings import read_site
from tests.sites.places import free_port

SITES = ("berlin", "lyon", "oslo", "turin")
FEATURES, ROWS = 6, 100
QUIET, ROUND, JOIN = 1.5, 4.0, 15.0  # seconds
LARGEST = 1 << 20  # bytes of an answer
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
END_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def rows(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, FEATURES)) @ np.diag(np.linspace(0.5, 3.0, FEATURES)) + rng.normal(size=FEATURES)
    z = (X - X.mean(0)) @ np.linspace(-0.6, 0.6, FEATURES)
    sick = np.where(rng.random(ROWS) < 1 / (1 + np.exp(-z)), "yes", "no")
    return pd.DataFrame(X, columns=[f"x{k}" for k in range(FEATURES)]).assign(sick=sick)


class Network:
    """Namespaces `NAME-site`, a veth each, and a bridge."""

    def __init__(self, name: str) -> None:
        self.name, self.host = name, "10.77.0.1"
        self.members = ("hub", *SITES)

    def __enter__(self) -> Network:
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__)
            _ip("netns", "add", f"{self.name}-net")
            _ip("-n", f"{self.name}-net", "link", "add", "br0", "type", "bridge")
            _ip("-n", f"{self.name}-net", "link", "set", "br0", "up")
            for k, member in enumerate(self.members):
                own = self.of(member)
                _ip("netns", "add", own)
                _ip(
                    "-n",
                    own,
                    "link",
                    "add",
                    "eth0",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    member,
                    "netns",
                    f"{self.name}-net",
                )
                _ip("-n", own, "addr", "add", f"10.77.0.{k + 1}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    _ip("-n", own, "link", "set", device, "up")
                _ip("-n", f"{self.name}-net", "link", "set", member, "master", "br0", "up")
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for member in (*self.members, "net"):
            subprocess.run(["ip", "netns", "del", self.of(member)], capture_output=True, check=False)

    def of(self, member: str) -> str:
        return f"{self.name}-{member}"

    def enter(self, member: str) -> None:
        """This process goes there, for good."""
        with open(f"/var/run/netns/{self.of(member)}", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")

    def cable(self, member: str, up: bool) -> None:
        _ip("-n", f"{self.name}-net", "link", "set", member, "up" if up else "down")

    def slow(self, member: str, rate: str | None) -> None:
        """At most so many bits per second, both ways; None: as fast as it goes."""
        for space, device in ((f"{self.name}-net", member), (self.of(member), "eth0")):
            shaped = ["tc", "-n", space, "qdisc", "replace" if rate else "del", "dev", device, "root"]
            shaped += ["tbf", "rate", rate, "burst", "4kb", "latency", "400ms"] if rate else []
            subprocess.run(shaped, check=True, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def network(name: str, wanted: bool = True) -> Iterator[Network | None]:
    """None where namespaces cannot be made, or are not wanted."""
    with contextlib.ExitStack() as stack:
        found: Network | None = None
        if wanted:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                found = stack.enter_context(Network(name))
        yield found


def swept(name: str) -> None:
    """Take away namespaces that a process which was killed has left."""
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in shown.splitlines():
        if line.startswith(f"{name}n"):
            subprocess.run(["ip", "netns", "del", line.split()[0]], capture_output=True, check=False)


def forked(work: Callable[[], object], log: Path) -> int:
    """A new process that does this and ends; what it prints goes to a file."""
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        torch.set_num_threads(1)
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def ended(pid: int) -> bool:
    """Has it ended? It is reaped then."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return True


def end(pid: int) -> None:
    for number in (signal.SIGCONT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


class Keys:
    """A folder with all keys, certificates and rows; made once."""

    def __init__(self, folder: Path, host: str) -> None:
        self.folder, self.host = folder, host
        folder.mkdir(parents=True)
        make_certificate(host, folder)
        for k, name in enumerate((*SITES, "hub")):
            make_key(name, folder)
            rows(k).to_csv(folder / f"{name}.csv", index=False)


class Rig:
    """One coordinator and its sites, in a folder of their own: `start` and `stop` by name."""

    def __init__(self, folder: Path, keys: Keys, masked: bool, net: Network | None) -> None:
        self.folder, self.keys, self.net = folder, keys, net
        self.pids: dict[str, int] = {}
        folder.mkdir(parents=True)
        at, port = keys.folder, 8443 if net else free_port()
        self.port = port
        listed = "".join(f'{name} = "{at}/{name}.pub"\n' for name in SITES)
        (folder / "sites.toml").write_text(
            f'listen = "{keys.host}:{port}"\ncertificate = "{at}/{keys.host}.crt"\n'
            f'certificate_key = "{at}/{keys.host}.key"\nkey = "{at}/hub.key"\nquiet = {QUIET}\njoin = {JOIN}\n'
            f"open = {JOIN}\nround = {ROUND}\nlargest = {LARGEST}\n[sites]\n{listed}"
        )
        for name in SITES:
            others = "".join(f'{other} = "{at}/{other}.pub"\n' for other in SITES if other != name)
            (folder / f"{name}.toml").write_text(
                f'name = "{name}"\nkey = "{at}/{name}.key"\naudit = "{name}.jsonl"\n[coordinator]\n'
                f'url = "https://{keys.host}:{port}"\nkey = "{at}/hub.pub"\nca = "{at}/ca.crt"\n'
                f'[data.heart]\npath = "{at}/{name}.csv"\n[roster]\n{others}\n'
                f'[policy]\nmasks = "{"required" if masked else "allowed"}"\n[limits]\npoll = 5\n'
            )

    def start(self, name: str, before: Callable[[], object] = lambda: None) -> None:
        """A site; `before`: what is done to its process first."""

        def work() -> None:
            if self.net is not None:
                self.net.enter(name)
            before()
            self.reached()
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            run_site(read_site(self.folder / f"{name}.toml"), stop, lambda text: print(text, flush=True))

        self.pids[name] = forked(work, self.folder / f"{name}.log")

    def reached(self, seconds: float = 2.0) -> None:
        """Wait for a coordinator that is being started, for a site that finds none tries again ever more slowly."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            with contextlib.suppress(OSError), socket.create_connection((self.keys.host, self.port), 0.5):
                return
            time.sleep(0.02)

    def coordinate(self, work: Callable[[], object]) -> int:
        def there() -> None:
            if self.net is not None:
                self.net.enter("hub")
            work()

        self.pids["hub"] = forked(there, self.folder / "hub.log")
        return self.pids["hub"]

    def send(self, name: str, number: int) -> None:
        if name in self.pids:
            os.kill(self.pids[name], number)

    def stop(self, name: str) -> None:
        if name in self.pids:
            end(self.pids.pop(name))

    def leave(self, name: str, seconds: float = 3.0) -> None:
        """Let a site end by itself."""
        self.send(name, signal.SIGTERM)
        limit = time.monotonic() + seconds
        while not ended(self.pids[name]) and time.monotonic() < limit:
            time.sleep(0.02)
        self.stop(name)

    def answered(self, name: str) -> int:
        """Lines of its audit file: how far a run is."""
        path = self.folder / f"{name}.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.pids):
            self.stop(name)
