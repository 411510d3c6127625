"""The command `keyscale` itself: global options, the list of commands, and how errors end it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from api.cli.artifacts import artifacts
from api.cli.checkpoints import checkpoints
from api.cli.connection import default_home
from api.cli.demo import demo
from api.cli.events import events
from api.cli.health import health
from api.cli.jobs import jobs
from api.cli.logs import logs
from api.cli.output import console_for
from api.cli.problems import CliError
from api.cli.rescale import rescale
from api.cli.savepoints import savepoints
from api.cli.session import Session
from api.cli.up import up
from api.cli.where import where

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="KEYSCALE_URL", help="Address of the control plane (default: the one started on --home).")
@click.option("--token", envvar="KEYSCALE_TOKEN", help="Token to show it (default: the admin token of --home).")
@click.option(
    "--home",
    envvar="KEYSCALE_HOME",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_home,
    show_default=".keyscale in the checkout",
    help="Where the control plane of this machine keeps everything.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the API's answer as JSON (every command takes it, too).")
@click.pass_context
def keyscale(context: click.Context, url: str | None, token: str | None, home: Path, as_json: bool) -> None:
    """Stateful PySpark streaming jobs that rescale without rewriting state.

    The launcher knows three commands more: `test` runs every check and test, `check` only the checks of the code, `lock`
    pins the requirements anew.
    """
    context.obj = Session(url=url, token=token, home=home.expanduser().absolute(), as_json=as_json)


for command in (up, demo, where, health, artifacts, jobs, rescale, savepoints, checkpoints, events, logs):
    keyscale.add_command(command)


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns the exit code: 0 done, 1 refused or failed, 2 not understood, 130 interrupted."""
    try:
        result = keyscale.main(args=list(arguments), prog_name="keyscale", standalone_mode=False)
    except CliError as error:
        show_problem(error, as_json="--json" in arguments)
        return 1
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return result if isinstance(result, int) else 0


def show_problem(error: CliError, *, as_json: bool) -> None:
    """Prints an error with its code and advice on standard error."""
    problem = error.as_problem()
    if as_json:
        sys.stderr.write(json.dumps(problem, indent=2, ensure_ascii=False) + "\n")
        return
    console = console_for(sys.stderr)
    console.print(f"[bold red]error[/] [bold]{problem.get('code', 'UNKNOWN')}[/]: ", end="")
    console.print(error.message, markup=False)
    for wrong in problem.get("errors") or []:
        console.print(f"  {wrong['field']}: {wrong['message']}", markup=False)
    if advice := problem.get("advice"):
        console.print(f"  {advice}", markup=False)
