"""Sites that serve real data sets, each `auqadmm site` in a process of its own, and a small fit over them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tests.sites.places import ROOT, free_port

import auqadmm as aq
from auqadmm.sites.keys import make_certificate, make_key

ROWS, FEATURES = 100, 5


def rows(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, FEATURES))
    z = X @ np.linspace(-0.8, 0.8, FEATURES)
    sick = np.where(rng.random(ROWS) < 1 / (1 + np.exp(-z)), "yes", "no")
    return pd.DataFrame(X, columns=[f"x{k}" for k in range(FEATURES)]).assign(sick=sick)


class Hospitals:
    """A folder with keys, certificates and rows, and one process per site while it is open."""

    def __init__(self, folder: Path, count: int, masked: bool) -> None:
        self.folder, self.names = folder, [f"site{k:02d}" for k in range(count)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        make_certificate("127.0.0.1", folder)
        for name in (*self.names, "coordinator"):
            make_key(name, folder)
        listed = "".join(f'{name} = "{name}.pub"\n' for name in self.names)
        port = free_port()
        (folder / "sites.toml").write_text(
            f'listen = "127.0.0.1:{port}"\ncertificate = "127.0.0.1.crt"\ncertificate_key = "127.0.0.1.key"\n'
            f'key = "coordinator.key"\nquiet = 60\n[sites]\n{listed}'
        )
        for k, name in enumerate(self.names):
            self.state(name).mkdir()
            rows(k).to_csv(folder / f"{name}.csv", index=False)
            others = "".join(f'{other} = "{other}.pub"\n' for other in self.names if other != name)
            (folder / f"{name}.toml").write_text(
                f'name = "{name}"\nkey = "{name}.key"\naudit = "{name}/sent.jsonl"\n[coordinator]\n'
                f'url = "https://127.0.0.1:{port}"\nkey = "coordinator.pub"\nca = "ca.crt"\n'
                f'[data.heart]\npath = "{name}.csv"\n[roster]\n{others}\n'
                f'[policy]\nmasks = "{"required" if masked else "allowed"}"\nrounds_per_day = 10000000\n'
            )

    def state(self, name: str) -> Path:
        """Where a site keeps its audit file and what else is its own."""
        return self.folder / name

    def __enter__(self) -> Hospitals:
        env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
        env |= {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
        for name in self.names:
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "auqadmm", "site", str(self.folder / f"{name}.toml")],
                    env=env, stdout=log, stderr=log,
                )  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def about(commit: str | None = None) -> dict[str, Any]:
    """Which code was run, when, and where."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    found = commit or subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    return {"commit": found or "unknown", "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), **versions}


def posed(blocks: Any) -> aq.Problem:
    return aq.Problem(aq.Logistic(reduction="pooled"), aq.L2(0.01), blocks, intercept=True)


def fitted(sites: aq.Sites, method: str, **options: Any) -> aq.Result:
    return aq.solve(posed(aq.SiteData("heart", target="sick")), method, engine=sites, **options)
