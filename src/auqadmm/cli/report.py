"""`auqadmm report`: draw the page of a fit again, from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from auqadmm.cli import outputs
from auqadmm.cli.errors import CommandError, writable_folder, writing
from auqadmm.files import model_files
from auqadmm.words import visible


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that auqadmm fit wrote.", metavar="DIR", show_default=False)],
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Draw report.html of a fit again, from summary.json, history.parquet and the model; nothing is computed."""
    if not folder.is_dir():
        raise CommandError(f"{visible(str(folder))} is not a folder; name one that auqadmm fit wrote.")
    outputs.refuse_unfinished(folder)
    summary, rows = outputs.read_summary(folder), outputs.read_history(folder)
    parts = model_files.read(folder)
    try:
        with writing(folder, "make room"):
            page = outputs.write_page(writable_folder(folder), summary, rows, parts)
    except (KeyError, TypeError) as error:
        raise CommandError(f"{folder / outputs.SUMMARY} is damaged ({error}); fit again.") from None
    Console(highlight=False).print(visible(str(page)), markup=False, soft_wrap=True)
