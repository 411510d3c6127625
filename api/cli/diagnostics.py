"""The commands that say what is wrong with a job."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from keyscale.client.request_paths import job_path
from keyscale.metrics import BATCH_PARTS
from keyscale.printable import printable
from keyscale.units import bytes_text
from keyscale.vocabulary import DiagnosticKind

from .errors import InvalidArgumentError
from .session import Session, json_option, pass_session

BATCH_COLUMNS = (
    ("BATCH", "batch_id"),
    ("COMMITTED", "at_ms"),
    ("RECORDS", "input_records"),
    ("TIME", "duration_ms"),
    *((part.label.upper(), part.name) for part in BATCH_PARTS),
)

_STACK = re.compile(r" \d+$", re.MULTILINE)
"""The end of a line of a profile: the number of samples."""

output_option = click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file for the result (default: standard output).",
)


@click.command()
@click.argument("job")
@json_option
@pass_session
def batches(session: Session, job: str) -> None:
    """Show where the time of a job's last batches went.

    The newest batch comes first. The parts of a batch add up to its TIME, which begins when the previous batch ends.
    """
    with session.control_plane() as control_plane:
        attempt = control_plane.get(job_path(job))["status"]["attempt"] or {}
    found = (attempt.get("metrics") or {}).get("recent_batches") or []
    session.output.table(found, map(_row, reversed(found)), BATCH_COLUMNS)


@click.command()
@click.argument("job")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file (default: the job's name with .zip, in this directory).",
)
@json_option
@pass_session
def bundle(session: Session, job: str, output: Path | None) -> None:
    """Write a support bundle of a job, a zip.

    The zip has the specification, health, metrics, attempts, operations, checkpoints, exceptions, events and versions,
    the stacks of a running job, and the end of the driver's log. Secrets are masked. Exceptions and the log have the
    job's own texts: read them before you pass the file on.
    """
    with session.control_plane() as control_plane:
        name = control_plane.get(job_path(job))["name"]
        content = control_plane.jobs.bundle(job)
    file = output or Path(f"{name}.zip")
    try:
        file.write_bytes(content)
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be written: {error.strerror}") from error
    session.output.say(f"wrote {file} ({bytes_text(len(content))})", {"file": str(file), "size_bytes": len(content)})


@click.command()
@click.argument("job")
@output_option
@json_option
@pass_session
def threads(session: Session, job: str, output: Path | None) -> None:
    """Show the stacks of all threads of a running job.

    They are the threads of the driver, of its Python workers on the driver's host, and of the JVMs. It works while a
    batch hangs, and the job goes on.
    """
    answer = taken(session, job, DiagnosticKind.THREAD_DUMP)
    _show(session, answer, text_of(answer), output)


@click.command()
@click.argument("job")
@click.option("--seconds", type=click.IntRange(1, 60), default=10, show_default=True, help="How long to take samples.")
@output_option
@json_option
@pass_session
def profile(session: Session, job: str, seconds: int, output: Path | None) -> None:
    """Show where the functions of a running job spend their time.

    The stacks of the job's Python workers are counted, fifty per second: one line per stack, the outermost function
    first, with its number. Tools for flame graphs read this form; the page of a job's logs draws it.
    """
    answer = taken(session, job, DiagnosticKind.PROFILE, duration_ms=1000 * seconds)
    sampled = [part for part in answer["parts"] if _STACK.search(part["text"])]
    for part in answer["parts"]:
        if part not in sampled and not session.as_json:
            click.echo(printable(f"{part['name']}: {part['text'].strip() or 'no samples'}"), err=True)
    _show(session, answer, "".join(map(_rooted, sampled)), output)


@click.command()
@click.argument("job")
@click.argument("operator")
@click.option("--rows", type=click.IntRange(1, 100), default=10, show_default=True, help="The most records per side.")
@click.option("--seconds", type=click.IntRange(1, 60), default=10, show_default=True, help="How long to wait for them.")
@click.option("--mask", is_flag=True, help="Show types and hashes in place of values.")
@output_option
@json_option
@pass_session
def sample(
    session: Session, /, *, job: str, operator: str, rows: int, seconds: int, mask: bool, output: Path | None
) -> None:
    """Show some records that an operator reads and emits.

    They are the first ones of the next batch that has some, as lines of JSON.
    """
    wanted = {"operator_uid": operator, "rows": rows, "duration_ms": 1000 * seconds, "with_values": not mask}
    answer = taken(session, job, DiagnosticKind.SAMPLE, **wanted)
    _show(session, answer, text_of(answer), output)


def _rooted(part: dict[str, Any]) -> str:
    """Returns the stacks of a process below a common root."""
    return "".join(f"{part['name'].replace(';', ',')};{line}\n" for line in part["text"].splitlines())


def text_of(answer: dict[str, Any]) -> str:
    """Returns what a diagnostic shows, part by part."""
    return "\n".join(f"=== {part['name']} ===\n{part['text'].rstrip()}\n" for part in answer["parts"])


def taken(session: Session, job: str, kind: DiagnosticKind, **arguments: Any) -> dict[str, Any]:
    """Returns a diagnostic with its parts, once the driver has answered."""
    with session.control_plane() as control_plane:
        requested = control_plane.diagnostics.request(job, kind=kind, **arguments)
        return control_plane.diagnostics.wait(job, requested.id).model_dump(mode="json")


def _show(session: Session, answer: dict[str, Any], text: str, output: Path | None) -> None:
    if output is None:
        session.output.show(answer, lambda _: sys.stdout.writelines([printable(text)]))
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"{output} cannot be written: {error.strerror}") from error
    session.output.say(f"wrote {output} ({bytes_text(len(text.encode()))})", answer)


def _row(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "duration_ms": sum(batch[part.name] for part in BATCH_PARTS)}
