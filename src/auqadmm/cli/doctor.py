"""`auqadmm doctor`: installed packages, their features, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated

import torch
import torch.distributed
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from auqadmm import __version__, engines

NEEDED = ("numpy", "scipy", "torch", "scikit-learn", "pyarrow", "safetensors", "matplotlib", "rich", "typer")
OPTIONAL = {"pandas": "data frames: history.to_pandas()", "ray": "engine ray", "dask": "engine dask"}


def doctor(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Print versions, devices and engines, and what is missing. Always ends with exit code 0."""
    screen = Console(highlight=False)
    for title, rows in (("Versions", versions()), ("Devices", devices()), ("Engines", engine_rows())):
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            show_header=False,
        )
        table.add_column(min_width=18, no_wrap=True)
        table.add_column(min_width=4)
        table.add_column()
        for name, good, words in rows:
            mark = Text("ok", style="green") if good else Text("–", style="yellow")
            table.add_row(Text(name), mark, Text(words))
        screen.print(table)
        screen.print()


def versions() -> list[tuple[str, bool, str]]:
    """Name, whether it is installed, and its version or how to install it."""
    rows = [
        ("auqadmm", True, __version__),
        ("python", True, f"{platform.python_version()} ({sys.platform}, {platform.machine()})"),
    ]
    for name in (*NEEDED, *OPTIONAL):
        try:
            rows.append((name, True, version(name)))
        except PackageNotFoundError:
            rows.append((name, False, f"not installed: {OPTIONAL.get(name, 'needed')}; pip install {name}"))
    return rows


def devices() -> list[tuple[str, bool, str]]:
    threads = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"
    rows = [("cpu", True, threads)]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        rows += [(f"cuda:{k}", True, torch.cuda.get_device_name(k)) for k in range(count)]
    else:
        rows.append(("cuda", False, "torch sees no CUDA device"))
    return rows


def engine_rows() -> list[tuple[str, bool, str]]:
    """Every engine that `--engine` takes, and those that could be installed."""
    rows = [("local", True, "all workers in this process")]
    there = torch.distributed.is_available()
    gloo, nccl = there and torch.distributed.is_gloo_available(), there and torch.distributed.is_nccl_available()
    rows.append(
        ("torch", gloo, "torch.distributed with gloo, for CPU" if gloo else "torch.distributed has no gloo here")
    )
    rows.append(
        (
            "torch on GPUs",
            nccl and torch.cuda.is_available(),
            "nccl is there" if nccl else "torch was built without nccl",
        )
    )
    for name in ("ray", "dask"):
        if name not in engines.KNOWN:
            rows.append((name, False, "this version of auqadmm has no such engine"))
        elif find_spec(name) is None:
            rows.append((name, False, f"not installed: pip install 'auqadmm[{name}]'"))
        else:
            rows.append((name, True, "installed"))
    known = {name for name, _, _ in rows}
    rows += [(name, True, "known to --engine") for name in engines.KNOWN if name not in known]
    return rows
