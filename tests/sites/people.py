"""Sites in threads of this process, with real keys, TLS and sockets; a coordinator comes from elsewhere."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from auqadmm.sites.keys import make_certificate, make_key
from auqadmm.sites.serving import decide, run_site, waiting
from auqadmm.sites.settings import SiteSettings, read_site
from tests.sites.inside import patients
from tests.sites.places import ROOT, free_port, until

NAMES = ("berlin", "lyon", "oslo")


class Town:
    """Keys, tables and settings of three sites and a coordinator; `rules`: a policy per site."""

    def __init__(self, folder: Path, rules: Mapping[str, str] | None = None, quiet: float = 3.0) -> None:
        self.folder, self.port, self.stops = folder, free_port(), dict[str, threading.Event]()
        self.threads: dict[str, threading.Thread] = {}
        self.logs: dict[str, list[str]] = {name: [] for name in NAMES}
        make_certificate("127.0.0.1", folder)
        for name in (*NAMES, "boss"):
            make_key(name, folder)
        rows = "".join(f'{name} = "{name}.pub"\n' for name in NAMES)
        (folder / "sites.toml").write_text(
            f'listen = "127.0.0.1:{self.port}"\ncertificate = "127.0.0.1.crt"\ncertificate_key = "127.0.0.1.key"\n'
            f'key = "boss.key"\nquiet = {quiet}\njoin = 60\nround = 60\n[sites]\n{rows}'
        )
        for k, name in enumerate(NAMES):
            patients(k, 120 + 40 * k).to_csv(folder / f"{name}.csv", index=False)
            self.write(name, self.port, (rules or {}).get(name, ""))

    def write(self, name: str, port: int, rules: str = "") -> None:
        others = "".join(f'{other} = "{other}.pub"\n' for other in NAMES if other != name)
        (self.folder / f"{name}.toml").write_text(
            f'name = "{name}"\nkey = "{name}.key"\naudit = "{name}.jsonl"\n[coordinator]\n'
            f'url = "https://127.0.0.1:{port}"\nkey = "boss.pub"\nca = "ca.crt"\n[data.heart]\n'
            f'path = "{name}.csv"\nnever = ["patient", "days"]\n[roster]\n{others}'
            f"[policy]\n{rules}\n[limits]\npoll = 5\n"
        )

    @property
    def file(self) -> Path:
        return self.folder / "sites.toml"

    def settings(self, name: str) -> SiteSettings:
        return read_site(self.folder / f"{name}.toml")

    def start(self, name: str) -> None:
        stop = self.stops[name] = threading.Event()
        args = (self.settings(name), stop, self.logs[name].append)
        self.threads[name] = threading.Thread(target=run_site, args=args, daemon=True)
        self.threads[name].start()

    def stop(self, name: str) -> None:
        self.stops.pop(name).set()
        self.threads.pop(name).join(15)

    def approve(self, name: str) -> None:
        """Once a plan waits there, a person says yes."""
        until(lambda: waiting(self.settings(name)), 60)
        decide(self.settings(name), next(iter(waiting(self.settings(name))))[:8], yes=True)


@contextlib.contextmanager
def town(folder: Path, rules: Mapping[str, str] | None = None, start: tuple[str, ...] = NAMES) -> Iterator[Town]:
    made = Town(folder, rules)
    try:
        for name in start:
            made.start(name)
        yield made
    finally:
        for stop in made.stops.values():
            stop.set()
        for thread in made.threads.values():
            thread.join(15)


def command(*words: object, **options: object) -> subprocess.Popen[str]:
    """`auqadmm …` as a process."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    return subprocess.Popen(
        [sys.executable, "-m", "auqadmm", *map(str, words)],
        env=env, text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},  # type: ignore[call-overload]
    )  # fmt: skip
