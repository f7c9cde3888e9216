"""The command line: `auqadmm COMMAND`, or `python -m auqadmm COMMAND`."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from auqadmm import __version__
from auqadmm.cli import compare as compare_module
from auqadmm.cli import fit as fit_module
from auqadmm.cli import meta as meta_module
from auqadmm.cli import predict as predict_module
from auqadmm.cli import sites as sites_module
from auqadmm.cli.doctor import doctor as doctor_command
from auqadmm.cli.reproduce import reproduce as reproduce_command
from auqadmm.errors import AuqadmmError
from auqadmm.words import visible

ABOUT = """
Fit one convex model on data that lives in many places.

Each worker keeps its own rows and solves a small problem; sums over rows and models travel, and a consensus is found
by ADMM with weights that say how certain each worker is.

Start with **auqadmm demo**: about a minute, nothing to download. Then **auqadmm fit** on files of your own.
"""
EXIT_CODES = "Exit codes: 0 done, 1 error (one line on standard error), 2 wrong usage."
# errors whose text is a sentence for the user; any other is a bug, and is shown with its class name
SENTENCES = (AuqadmmError,)
LONGEST_ERROR = 1000  # letters of a message that are shown
CTRL_C = 130  # 128 + SIGINT, as in shells

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class ListsOnce(TyperCommand):
    """A command that takes a list of columns once: of `--drop a --drop b` the first would be forgotten without a word.
    Of other options the last one counts, as usual."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # the context of whichever click typer brings
        words = [word.split("=", 1)[0] for word in args[: args.index("--") if "--" in args else len(args)]]
        for param in self.params:
            listed = isinstance(param, TyperOption) and "a,b,c" in (param.help or "")
            if listed and sum(word in param.opts for word in words) > 1:
                raise typer.BadParameter(
                    f"{param.opts[0]} is given more than once; write the names in one: a,b,c.", ctx=ctx
                )
        return super().parse_args(ctx, args)


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


app.command("demo", cls=ListsOnce, epilog=EXIT_CODES)(compare_module.demo)
app.command("fit", cls=ListsOnce, epilog=fit_module.EXAMPLES)(fit_module.fit)
app.command("meta", cls=ListsOnce, epilog=meta_module.EXAMPLES)(meta_module.meta)
app.command("predict", cls=ListsOnce, epilog=predict_module.EXAMPLES)(predict_module.predict)
app.command("compare", cls=ListsOnce, epilog=compare_module.EXAMPLES)(compare_module.compare_files)
app.command("report", cls=ListsOnce, epilog=EXIT_CODES)(predict_module.report)
app.command("reproduce", cls=ListsOnce, epilog=EXIT_CODES)(reproduce_command)
app.command("doctor", cls=ListsOnce)(doctor_command)
app.command("key", cls=ListsOnce, epilog=EXIT_CODES)(sites_module.key)
app.command("site", cls=ListsOnce, epilog=EXIT_CODES)(sites_module.site)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; the exit code is 0, 1 after an error reported in one line, 2 after wrong usage, 3 when a fit
    stopped before convergence, or 130 after Ctrl-C before there was a result."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters shows question marks, no error
            stream.reconfigure(errors="replace")
    try:
        try:
            app(given, prog_name="auqadmm")
        finally:
            if sys.stdout is not None:  # flush here, where a full disk can be reported
                sys.stdout.flush()
    except SystemExit as ended:
        if ended.code == CTRL_C and os.environ.get("RANK", "0") == "0":
            typer.echo("auqadmm: Interrupted before there was a result.", err=True)
        raise
    except BrokenPipeError:  # the reader closed the pipe
        _hush()
        sys.exit(1)
    except Exception as error:
        if "--debug" in given:
            raise
        if os.environ.get("RANK", "0") == "0":  # under torchrun all processes get the error, and one prints it
            typer.echo(f"auqadmm: {_sentence(error)}", err=True)
        if isinstance(error, OSError):
            _hush()
        sys.exit(1)


def _hush() -> None:
    """Drop unwritten output; Python would try again at exit, and print an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _sentence(error: Exception) -> str:
    # may contain names and values from files: no control characters may reach the terminal
    text = visible(" ".join(str(error).split()))
    text = text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}…"
    if isinstance(error, SENTENCES):
        return text
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # file writers report this themselves
        return "Cannot write to standard output: No space left on device; make room."
    return f"{type(error).__name__}: {text} (auqadmm --debug … shows where)"
