"""A coordinator with its sites on loopback: real keys, real certificates, real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from auqadmm.sites.hub import Hub
from auqadmm.sites.keys import make_certificate, make_key
from auqadmm.sites.settings import HubSettings, read_hub

ROOT = Path(__file__).parents[2]
QUIET = 2.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


class Place:
    """A folder with all keys; `site` starts a process, `hub` is the coordinator."""

    def __init__(self, folder: Path, names: Iterable[str] = "abc", quiet: float = QUIET) -> None:
        self.folder, self.names, self.port = folder, list(names), free_port()
        make_certificate("127.0.0.1", folder)
        for name in (*self.names, "coordinator"):
            make_key(name, folder)
        (folder / "x.csv").write_text("age\n1\n")
        self.write_hub(quiet)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def write_hub(self, quiet: float) -> None:
        rows = "".join(f'{name} = "{name}.pub"\n' for name in self.names)
        (self.folder / "sites.toml").write_text(
            f'listen = "127.0.0.1:{self.port}"\ncertificate = "127.0.0.1.crt"\ncertificate_key = "127.0.0.1.key"\n'
            f'key = "coordinator.key"\nquiet = {quiet}\njoin = 20\nround = 30\nopen = 20\n[sites]\n{rows}'
        )

    @property
    def settings(self) -> HubSettings:
        return read_hub(self.folder / "sites.toml")

    def hub(self) -> Hub:
        return Hub(self.settings)

    def write_site(self, name: str, port: int | None = None, poll: float = 20.0, **other: str) -> Path:
        """The settings of a site; others than usual by name."""
        files = {"ca": "ca.crt", "key": f"{name}.key", "coordinator": "coordinator.pub"} | other
        path = self.folder / f"{name}.toml"
        path.write_text(
            f'name = "{name}"\nkey = "{files["key"]}"\naudit = "{name}.jsonl"\n[coordinator]\n'
            f'url = "https://127.0.0.1:{port or self.port}"\nkey = "{files["coordinator"]}"\nca = "{files["ca"]}"\n'
            f'[data.x]\npath = "x.csv"\n[limits]\npoll = {poll}\nquiet = 20\n'
        )
        return path

    def start(self, name: str, **other: object) -> subprocess.Popen[bytes]:
        path = self.write_site(name, **other)  # type: ignore[arg-type]
        env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {"PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.sites.program", str(path)], env=env, stdout=log, stderr=log, cwd=ROOT
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        for number in (signal.SIGCONT, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
        process.wait(10)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


@contextmanager
def place(folder: Path, names: Iterable[str] = "abc", quiet: float = QUIET) -> Iterator[Place]:
    made = Place(folder, names, quiet)
    try:
        yield made
    finally:
        made.close()
