"""The command line: `auqadmm COMMAND`, or `python -m auqadmm COMMAND`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from auqadmm import __version__
from auqadmm.cli.demo import demo as demo_command  # a name of its own: `cli.demo` stays the module
from auqadmm.cli.errors import CommandError
from auqadmm.cli.reproduce import reproduce as reproduce_command

ABOUT = """
Fit one convex model on data that lives in many places.

Each worker keeps its own rows and solves a small problem; only models travel, and a consensus is found by ADMM
with weights that say how certain each worker is.

Start with **auqadmm demo**: half a minute, nothing to download.
"""
EXIT_CODES = "Exit codes: 0 done, 1 error (one line on standard error), 2 wrong usage."

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"auqadmm {__version__}")
        raise typer.Exit


@app.callback(help=ABOUT, epilog=EXIT_CODES)
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass


app.command("demo", epilog=EXIT_CODES)(demo_command)
app.command("reproduce", epilog=EXIT_CODES)(reproduce_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; the exit code is 0, 1 after an error told in one line, or 2 after wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no Greek gets question marks, not an error
            stream.reconfigure(errors="replace")
    try:
        app(given, prog_name="auqadmm")
    except Exception as error:
        if "--debug" in given:
            raise
        typer.echo(f"auqadmm: {_sentence(error)}", err=True)
        sys.exit(1)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, CommandError):
        return text
    return f"{type(error).__name__}: {text} (auqadmm --debug … shows where)"
