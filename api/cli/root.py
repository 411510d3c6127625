"""The command `keyscale`: its global options, commands and exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.connection import default_home
from keyscale.client.errors import JobFileError, ReportedError, WaitTimeoutError
from keyscale.errors import KeyscaleError
from keyscale.installation import VERSION

from .apply import apply, export
from .artifact_check import check
from .artifacts import artifacts
from .autoscaler import autoscaler
from .batch_replay import replay
from .change_plan import plan
from .checkpoints import checkpoints, savepoints
from .completion import completion
from .control_plane import events, health, up, where
from .diagnostics import batches, bundle, profile, sample, threads
from .errors import CliError
from .job_changes import clone, rollback, update
from .jobs import jobs, logs
from .operations import operations
from .output import console_for, describe_failure
from .recover import recover
from .rescale import rescale
from .revisions import revisions
from .secret_labels import secrets
from .session import Session
from .state import state
from .subscriptions import subscriptions
from .tokens import tokens, whoami
from .user_metrics import metrics

if TYPE_CHECKING:
    from collections.abc import Sequence


_OF_REQUESTS = re.compile(r"\bOver HTTP:|\b(GET|POST|PUT|PATCH|DELETE) /")

_EXIT_CODES: dict[type[KeyscaleError], int] = {WaitTimeoutError: 3, JobFileError: 2}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url",
    envvar="KEYSCALE_URL",
    help=("Address of the control plane (default: the control plane started on --home)."),
)
@click.option(
    "--token", envvar="KEYSCALE_TOKEN", help="Token for the control plane (default: the admin token of --home)."
)
@click.option(
    "--home",
    envvar="KEYSCALE_HOME",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_home,
    show_default=".keyscale in the checkout",
    help="Directory of the control plane on this machine.",
)
@click.option(
    "--ca-file",
    envvar="KEYSCALE_CA_FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="PEM file with further certificate authorities to trust.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the API's answer as JSON (also an option of each command)."
)
@click.version_option(VERSION, message="%(prog)s %(version)s")
@click.pass_context
def keyscale(
    context: click.Context, /, *, url: str | None, token: str | None, home: Path, ca_file: Path | None, as_json: bool
) -> None:
    """Stateful PySpark streaming jobs that rescale without rewriting state.

    In a checkout, the launcher adds more commands: `demo` runs a job on real input, kills it, rescales it, and compares
    every number; `test` runs the checks and the tests; `check` runs only the checks of the code; `lock` pins the
    requirements again; `docs` generates the reference of the Python API.
    """
    context.obj = Session(url=url, token=token, home=home.expanduser().absolute(), ca_file=ca_file, as_json=as_json)


for command in (
    up,
    where,
    health,
    artifacts,
    jobs,
    apply,
    export,
    rescale,
    autoscaler,
    operations,
    revisions,
    savepoints,
    checkpoints,
    events,
    logs,
    subscriptions,
    tokens,
    secrets,
    recover,
    state,
    replay,
    whoami,
    completion,
):
    keyscale.add_command(command)
for command in (plan, update, rollback, clone, batches, bundle, threads, profile, sample, metrics):
    jobs.add_command(command)
artifacts.add_command(check)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default the process's own; returns the exit code.

    Returns:
        0 done, 1 refused or failed, 2 wrong usage, 3 not reached within --timeout, 4 a dry run that finds something to
        do, 130 interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        result = keyscale.main(args=list(arguments), prog_name="keyscale", standalone_mode=False)
    except KeyscaleError as error:
        show_problem(error, as_json="--json" in arguments)
        return exit_code_of(error)
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return result if isinstance(result, int) else 0


def exit_code_of(error: KeyscaleError) -> int:
    """Returns the exit code of a command that an error ended."""
    if isinstance(error, CliError):
        return error.exit_code
    return _EXIT_CODES.get(type(error), 1)


def show_problem(error: KeyscaleError, *, as_json: bool) -> None:
    """Prints an error with its code and advice on standard error."""
    problem = _problem_of(error)
    if as_json:
        sys.stderr.write(json.dumps(problem, indent=2, ensure_ascii=False) + "\n")
        return
    console = console_for(sys.stderr)
    console.print(f"[bold red]error[/] [bold]{problem.get('code', 'UNKNOWN')}[/]: ", end="")
    console.print(problem["detail"], markup=False)
    for wrong in problem.get("errors") or []:
        console.print(f"  {wrong['field']}: {wrong['message']}", markup=False)
    if failure := problem.get("failure"):
        console.print(describe_failure(failure), markup=False, highlight=False, soft_wrap=True)
    if advice := advice_of_command_line(problem.get("advice") or ""):
        console.print(f"  {advice}", markup=False)


def _problem_of(error: KeyscaleError) -> dict[str, Any]:
    if isinstance(error, ReportedError):
        return error.as_problem()
    return {"code": error.code, "detail": str(error), "advice": error.advice, "retryable": error.retryable}


def advice_of_command_line(advice: str) -> str:
    """Returns an advice in the words of the command line.

    An advice names the commands first, and requests in sentences that begin with "Over HTTP". Advice for requests alone
    stays.
    """
    sentences = re.split(r"(?<=\.) (?=[A-Z`])", advice)
    own = [sentence for sentence in sentences if not _OF_REQUESTS.search(sentence)] or sentences
    text = re.sub(r"^`detail`|(?<=\. )`detail`", "The message", " ".join(own))
    return text.replace("`detail`", "the message")
