"""`auqadmm doctor`: installed packages, their features, and what is missing; with --sites, how far sites are."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.distributed
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from auqadmm import __version__, engines
from auqadmm.cli.sites import missing_extra
from auqadmm.words import visible

if TYPE_CHECKING:
    from auqadmm.sites.checkup import Checkup, SiteCheck

MISSING = 1  # exit code: a fit over these sites would not run
NEEDED = ("numpy", "scipy", "torch", "scikit-learn", "pyarrow", "safetensors", "matplotlib", "rich", "typer")
OPTIONAL = {"pandas": "data frames: history.to_pandas()", "ray": "engine ray", "dask": "engine dask"}


def doctor(
    sites: Annotated[
        Path | None, typer.Option("--sites", help="sites.toml: wait for its sites, and measure how far they are.")
    ] = None,
    wait: Annotated[float, typer.Option("--wait", help="With --sites: seconds to wait for them.", min=0)] = 30.0,
    lines: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Print versions, devices and engines, and what is missing; the exit code is 0.

    With --sites: round trips to every site, versions, clocks, the certificate, and the --round-cost that follows. No
    data set is looked at. The exit code is 1 where a site is missing, or the certificate has expired.
    """
    if sites is not None:
        _sites(sites, wait, lines)
        return
    parts = (("Versions", versions()), ("Devices", devices()), ("Engines", engine_rows()))
    if lines:
        names = ("name", "there", "words")
        told = {title.lower(): [dict(zip(names, row, strict=True)) for row in rows] for title, rows in parts}
        typer.echo(json.dumps(told, indent=2))
        return
    screen = Console(highlight=False)
    for title, rows in parts:
        table = _table(title, header=False)
        table.add_column(min_width=18, no_wrap=True)
        table.add_column(min_width=4)
        table.add_column()
        for name, good, words in rows:
            mark = Text("ok", style="green") if good else Text("–", style="yellow")
            table.add_row(Text(name), mark, Text(words))
        screen.print(table)
        screen.print()


def _table(title: str, header: bool) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        show_header=header,
    )


# ---------------------------------------------------------------------- sites
def _sites(path: Path, wait: float, lines: bool) -> None:
    with missing_extra("sites"):
        from auqadmm.sites.checkup import checkup
        from auqadmm.sites.hub import Hub
        from auqadmm.sites.settings import read_hub

    with Hub(read_hub(path)) as hub:
        found = checkup(hub, wait, on_change=None if lines else _waiting)
    if lines:
        typer.echo(json.dumps(found.plain(), indent=2))
    else:
        _show(found)
    if found.failing:
        raise typer.Exit(MISSING)


def _waiting(status: Mapping[str, Any]) -> None:
    missing = [name for name, site in status.items() if site.state in ("absent", "left", "quiet")]
    text = f"waiting for {', '.join(missing)}" if missing else f"all {len(status)} sites are here; measuring"
    sys.stderr.write(f"{visible(text)}\n")
    sys.stderr.flush()


def _show(found: Checkup) -> None:
    screen = Console(highlight=False)
    table = _table("Sites", header=True)
    heads = ("site", "state", "round trip", "p95", "5 kB each way", "1 MB more", "clock", "version")
    for k, head in enumerate(heads):
        table.add_column(head, justify="left" if k in (0, 1, 7) else "right", no_wrap=k != 1)
    for site in found.sites:
        table.add_row(*(Text(visible(cell)) for cell in _cells(site)))
    screen.print(table)
    screen.print()
    told = [f"auqadmm {found.version} here; the certificate ends on {found.certificate_ends}."]
    if found.round_cost is not None:
        told.append(
            f"A round is worth {_two(found.round_cost)} numbers: --round-cost {_two(found.round_cost)}; where sums are "
            f"masked, a number takes twice the bytes: {_two(found.round_cost / 2)}."
        )
    for text in (*told, *found.notes, *found.failing):
        screen.print(visible(text), markup=False, soft_wrap=True)


def _cells(site: SiteCheck) -> Sequence[str]:
    if not site.here:
        return (site.name, site.state, *["–"] * 6)
    mega = None if site.per_byte is None else 1e6 * site.per_byte
    times = [_milli(x) for x in (site.trip, site.trip_p95, site.typical, mega)]
    return (site.name, "here", *times, f"{site.clock or 0.0:+.3f} s", str(site.version))


def _milli(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.1f} ms"


def _two(x: float) -> str:
    """Two digits are all that was measured."""
    return f"{float(f'{x:.2g}'):.0f}"


# ---------------------------------------------------------------------- this machine
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
