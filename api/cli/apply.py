"""The commands that keep jobs in files: `apply` and `export`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.declarations.job_file import Content, read_declarations
from keyscale.client.declarations.job_plan import Facts, JobPlan, Step, plan_jobs
from keyscale.client.declarations.job_text import distinct_files, job_text
from keyscale.client.errors import ClientError, WaitTimeoutError
from keyscale.vocabulary import OperationStatus

from .operations import approval_line
from .session import Session, json_option, pass_session, timeout_option, wait_option
from .setting_options import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from keyscale.client.keyscale import Keyscale

TIMEOUT_EXIT_CODE = 3
CHANGES_EXIT_CODE = 4
"""Of a dry run that finds something to do."""


@click.command()
@click.option(
    "-f",
    "--file",
    "paths",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A YAML file with one or several jobs, or a directory of such files. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only show the plan; the exit code is 4 if there is something to do.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--prune", is_flag=True, help="Stop and delete the jobs of --selector that are not in the files.")
@click.option(
    "--selector",
    "-l",
    type=Pair(),
    multiple=True,
    metavar="LABEL=VALUE",
    help="With --prune: only jobs with this label. May be repeated; a job needs all of them.",
)
@click.option("--delete-objects", is_flag=True, help="With --prune: delete checkpoints and logs of the jobs, too.")
@click.option("--message", "-m", help="Why; shown with the revisions.")
@wait_option("every job has reached its declared state", default=False)
@timeout_option
@json_option
@pass_session
def apply(
    session: Session,
    /,
    *,
    paths: Sequence[Path],
    dry_run: bool,
    yes: bool,
    prune: bool,
    selector: Sequence[tuple[str, str]],
    delete_objects: bool,
    message: str | None,
    wait: bool,
    timeout_s: float | None,
) -> int:
    """Make jobs as files declare them.

    The plan is shown first, with each setting that changes, and when a running job takes the setting over. Other jobs
    stay as they are, unless --prune deletes them. A second `apply` of the same files does nothing.
    """
    if prune != bool(selector):
        raise click.UsageError("give --prune and --selector together: a prune without a selector would take every job")
    declarations = read_declarations(paths)
    labels = dict(selector) if prune else None
    with session.control_plane() as client:
        hashes = {each.id: each.sha256 for each in client.artifacts.list()}
        jobs = list(client.jobs.list())
        plans = plan_jobs(declarations, Facts(jobs, hashes), prune=labels)
        session.output.show([_as_json(each) for each in plans], lambda console: _show(console, plans))
        if any(plan.refusal for plan in plans):
            return 1
        if not any(plan.steps for plan in plans):
            return 0
        if dry_run:
            return CHANGES_EXIT_CODE
        if not yes:
            _confirm()
        for content in _new_files(plans, set(hashes.values())):
            artifact = client.artifacts.upload(content.path)
            hashes[artifact.id] = artifact.sha256
        manner = _Manner(message, keep_objects=not delete_objects, wait=wait, timeout_s=timeout_s)
        return _carry_out_all(client, plan_jobs(declarations, Facts(jobs, hashes), prune=labels), manner)


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a file JOB.yaml for each job, and its program and libraries, into this directory. Default: print jobs.",
)
@pass_session
def export(session: Session, /, *, jobs: Sequence[str], directory: Path | None) -> None:
    """Write jobs as files that `apply` reads.

    With --output, the files that they name as programs and libraries are written, too; present files are replaced.
    Printed jobs need these files from `artifacts download`.
    """
    with session.control_plane() as client:
        found = [client.jobs.get(each) for each in jobs]
        used = [each for job in found for each in (job.spec.artifact_id, *job.spec.libraries)]
        filenames = distinct_files(used, {each.id: each.filename for each in client.artifacts.list()})
        texts = {job.name: job_text(job, filenames) for job in found}
        if directory is None:
            click.echo("---\n".join(texts.values()), nl=False)
            return
        contents = {file: client.artifacts.content(each) for each, file in filenames.items()}
    for file, content in {**contents, **{f"{name}.yaml": text.encode() for name, text in texts.items()}}.items():
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        click.echo(str(path))


@dataclass(frozen=True, slots=True)
class _Manner:
    """How plans are carried out, as the options say it."""

    message: str | None
    keep_objects: bool
    wait: bool
    timeout_s: float | None


def _carry_out_all(client: Keyscale, plans: Sequence[JobPlan], manner: _Manner) -> int:
    """Carries plans out, also after one has failed; returns the exit code."""
    errors: list[ClientError] = []
    for plan in plans:
        try:
            _carry_out(client, plan, manner)
        except ClientError as error:
            errors.append(error)
            click.echo(f"{plan.name}: {error.code}: {error.message}\n  {error.advice}", err=True)
    if not errors:
        return 0
    return TIMEOUT_EXIT_CODE if all(isinstance(each, WaitTimeoutError) for each in errors) else 1


def _carry_out(client: Keyscale, plan: JobPlan, manner: _Manner) -> None:
    for step in plan.steps:
        operation_id = None
        if step is Step.CREATE:
            _create(client, plan)
        elif step is Step.UPDATE and plan.present is not None and plan.spec is not None:
            patch = plan.patch(plan.spec)
            update = client.jobs.update(plan.name, plan.present.revision, spec=patch, message=manner.message)
            operation_id = update.id
            if update.status is OperationStatus.PENDING_APPROVAL:
                click.echo(f"{plan.name}: {approval_line(update.id or '')}", err=True)
        elif step is Step.START:
            operation_id = client.jobs.start(plan.name).id
        elif step is Step.STOP:
            operation_id = client.jobs.stop(plan.name).id
        elif step is Step.DELETE:
            client.jobs.delete(plan.name, keep_objects=manner.keep_objects)
        is_last = step is plan.steps[-1]
        if operation_id is not None and (manner.wait or not is_last):
            client.operations.wait(operation_id, manner.timeout_s)
        click.echo(f"{plan.name}: {_DONE[step]}", err=True)


def _create(client: Keyscale, plan: JobPlan) -> None:
    if plan.declaration is not None:
        client.jobs.create(name=plan.name, labels=dict(plan.declaration.labels), spec=plan.new_spec())


def _new_files(plans: Sequence[JobPlan], known: set[str]) -> list[Content]:
    contents = [each for plan in plans if plan.declaration is not None for each in plan.declaration.contents]
    return [each for each in dict.fromkeys(contents) if each.sha256 not in known]


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("give --yes or --dry-run: the command has no terminal to ask at")
    click.confirm("Do this?", abort=True, err=True)


def _show(console: Console, plans: Sequence[JobPlan]) -> None:
    for plan in plans:
        console.print(f"{plan.name}: {_in_words(plan)}", markup=False)
        for each in plan.differences:
            before, after = (_text(value) for value in (each.before, each.after))
            console.print(f"    {each.path}: {before} -> {after}  ({each.change_class})", markup=False)


def _in_words(plan: JobPlan) -> str:
    if plan.refusal is not None:
        return f"cannot be applied: {plan.refusal}"
    if not plan.steps:
        return "unchanged"
    return ", ".join(_TO_DO[step] for step in plan.steps)


def _as_json(plan: JobPlan) -> dict[str, Any]:
    return {
        "job": plan.name,
        "steps": list(plan.steps),
        "refusal": plan.refusal,
        "differences": [
            {"path": each.path, "before": each.before, "after": each.after, "change_class": each.change_class}
            for each in plan.differences
        ],
    }


def _text(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_TO_DO = {
    Step.CREATE: "create",
    Step.STOP: "stop",
    Step.UPDATE: "change",
    Step.START: "start",
    Step.DELETE: "delete",
}
_DONE = {
    Step.CREATE: "created",
    Step.STOP: "stopping",
    Step.UPDATE: "changed",
    Step.START: "starting",
    Step.DELETE: "deleted",
}
