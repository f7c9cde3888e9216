"""`auqadmm key`, `auqadmm site`: what runs at a site, beside its data.

auqadmm key NAME                        a key pair: NAME.key stays, NAME.pub is given to the others
auqadmm site site.toml                  join, wait, answer, run after run, until Ctrl-C
auqadmm site --check site.toml          what this site would let out
auqadmm site approve RUN site.toml      say yes to a plan that waits; `refuse` says no, `plans` shows them
auqadmm site --audit sent.jsonl         what has left, as a table
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auqadmm.cli.outputs import CommandError
from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Prepared, Task, formula_settings
from auqadmm.formula.parsing import Formula
from auqadmm.problem import L2, ElasticNet, Zero
from auqadmm.words import visible

if TYPE_CHECKING:
    from auqadmm.sites.engine import Sites
    from auqadmm.sites.hub import SiteStatus
    from auqadmm.sites.settings import SiteSettings

WORDS = ("approve", "refuse", "plans")


def key(
    name: Annotated[str, typer.Argument(help="Of the site or the coordinator.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where to write the files.")] = Path("."),
    certificate: Annotated[
        str | None, typer.Option("--certificate", help="Also a TLS certificate, for a coordinator at this host.")
    ] = None,
) -> None:
    """Make a key pair: NAME.key, which nobody else may read, and NAME.pub, which the others are given."""
    with missing_extra("sites"):
        from auqadmm.sites.keys import make_certificate, make_key, read_public
    secret, public = make_key(name, folder)
    typer.echo(f"{secret}   keep it; nobody else may read it")
    typer.echo(f"{public}   give it to the others; fingerprint {read_public(public).fingerprint}")
    if certificate is not None:
        ca, cert, cert_key = make_certificate(certificate, folder)
        typer.echo(f"{cert}, {cert_key}   for the coordinator at {certificate}")
        typer.echo(f"{ca}   give it to the sites: `ca` in their site.toml")


def site(
    what: Annotated[
        list[str], typer.Argument(help="site.toml; or approve RUN site.toml, refuse RUN …, plans site.toml.")
    ],
    check: Annotated[bool, typer.Option("--check", help="Show what this site would let out, and stop.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Show a file of lines (sent.jsonl) as a table.")] = False,
) -> None:
    """Serve a site's data sets to the coordinator that its file names, within its policy, until Ctrl-C.

    Nothing is sent but what the policy allows, and every message that leaves is a line of the audit file.
    """
    with missing_extra("sites"):
        from auqadmm.sites import audit as lines
        from auqadmm.sites import serving
        from auqadmm.sites.settings import read_site
    if audit:
        typer.echo(lines.table(lines.read_audit(_one(what))))
        return
    if what[0] in WORDS:
        _decide(what[0], what[1:])
        return
    settings = read_site(_one(what))
    if check:
        for line in serving.checked(settings):
            typer.echo(visible(line))
        return
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        serving.run_site(settings, stop, _log(settings))
    except KeyboardInterrupt:
        stop.set()
    typer.echo("The site has left.", err=True)


# ---------------------------------------------------------------------- `auqadmm fit --sites`
def check_usage(
    files: Sequence[Path],
    sites: Path | None,
    data: str | None,
    watch: bool | int,
    engine: str,
    **others: object,
) -> None:
    """Usage errors of --sites, and of files: exit code 2. `others`: options that sites have no use for."""
    if sites is None:
        if data is not None or watch is not False:
            raise typer.BadParameter("--data and --watch belong to --sites.")
        if not files:
            raise typer.BadParameter("There are no files; name one per worker, or --sites sites.toml.")
        return
    if files:
        raise typer.BadParameter("With --sites the data lies at the sites: name no files.")
    if data is None:
        raise typer.BadParameter("--sites needs --data NAME, the data set that the sites have under this name.")
    if engine != "local":
        raise typer.BadParameter("--sites is an engine of its own: leave --engine out.")
    for name, value in others.items():
        if value not in (None, False):
            raise typer.BadParameter(f"--{name.replace('_', '-')} is not served by sites.")


@contextmanager
def connected(path: Path, silent: bool, watch: bool | int = False) -> Iterator[Sites]:
    """Sites that are waited for when they are needed, and told about on the way; `watch`: show them on a page."""
    with missing_extra("sites"):
        from auqadmm.sites import hub  # noqa: F401  # what the extra brings
        from auqadmm.sites.engine import Sites

    with Sites(path, watch=watch) as sites:
        if not silent:
            sites.on_change = _told
        if sites.url:  # asked for, so it is said in any case
            sys.stderr.write(f"watch it at {sites.url}\n")
            sys.stderr.flush()
        yield sites


def _told(status: Mapping[str, SiteStatus]) -> None:
    missing = [name for name, site in status.items() if site.state in ("absent", "left", "quiet")]
    text = f"waiting for {', '.join(missing)}" if missing else f"all {len(status)} sites are here"
    sys.stderr.write(f"{visible(text)}\n")
    sys.stderr.flush()


def prepared(
    sites: Sites,
    data: str,
    model: str,
    method: str,
    roles: Roles,
    settings: Settings,
    task: Task,
    formula: Formula | None = None,
    cv: int | str | None = None,
) -> tuple[Prepared, str]:
    """The encoding that the sites agree on, and the method: another one where they allow sums only."""
    from auqadmm.sites.study import SiteData
    from auqadmm.sites.tables import Wanted

    if task.likelihood and task.l1 == task.l2 == 0:  # the same model, and better numbers
        settings = replace(settings, standardize=True)
    if formula is not None:
        settings = formula_settings(formula, settings)
    target = roles.target or roles.time or ""
    text = None if formula is None else formula.text
    asked = SiteData(data, target, asked=Wanted(roles, settings, task, text, "" if cv is None else str(cv)))
    g = Zero() if task.l1 == task.l2 == 0 else ElasticNet(task.l1, task.l2) if task.l1 else L2(task.l2)
    agreed, chosen = sites.begin(asked, model, method, g)
    return Prepared(agreed, (), asked), str(chosen)


def terms(sites: Sites) -> list[str]:
    """What the policies of sites answered to a plan, for people."""
    study = sites.study
    assert study is not None
    lines = ["", "All sites agree to the plan, with their policies:"]
    for name, terms in study.terms.items():
        given = "sums only" if terms["sums_only"] or study.masked else "sums, and weights and multipliers of its own"
        lines.append(f"  {name}: {given}; masks {terms['masks']}; at least {terms['min_sites']} sites")
    lines.append("Sums are masked." if study.masked else "Sums are not masked.")
    return lines


@contextmanager
def missing_extra(extra: str) -> Iterator[None]:
    """A package that an extra brings and that is not installed, in one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandError(f'This needs {error.name}: pip install "auqadmm[{extra}]".') from None


def _one(words: list[str]) -> Path:
    if len(words) != 1:
        raise typer.BadParameter(f"one file is expected, not {' '.join(words)}.")
    return Path(words[0])


def _decide(word: str, rest: list[str]) -> None:
    from auqadmm.sites import serving
    from auqadmm.sites.settings import read_site

    run, path = ("", rest) if word == "plans" else (rest[0] if rest else "", rest[1:])
    settings = read_site(_one(path or ["site.toml"]))
    if word != "plans":
        name = serving.decide(settings, run, yes=word == "approve")
        typer.echo(f"Run {name[:8]}: {'approved' if word == 'approve' else 'refused'}.")
        return
    plans = serving.waiting(settings)
    for name, plan in plans.items():
        columns = plan["columns"]
        assert isinstance(columns, list)
        typer.echo(
            visible(
                f"{name[:8]}  {plan['coordinator']} wants {plan['model']} on {plan['data']} by {plan['method']}: "
                f"target {plan['target']}, columns {', '.join(map(str, columns))}"
            )
        )
    if not plans:
        typer.echo("No plan waits.")


def _log(settings: SiteSettings) -> Callable[[str], None]:
    def log(text: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {settings.name}: {visible(text)}\n")
        sys.stderr.flush()

    return log
