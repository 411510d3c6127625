"""The commands that bring the state of other systems into a savepoint.

They run Spark in this process, and need no control plane.
"""
# ruff: noqa: PLC0415 (Spark is imported when a command runs)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import InvalidArgumentError
from .output import make_fields, make_table
from .session import Session, json_option, pass_session
from .setting_options import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STATE_COLUMNS = (
    ("SPARK OPERATOR", "spark_operator"),
    ("SPARK STATE", "spark_state"),
    ("OPERATOR", "uid"),
    ("STATE", "state"),
    ("ROWS", "rows"),
    ("ENTRIES", "entries"),
)
FLINK_COLUMNS = (
    ("FLINK OPERATOR", "flink_operator"),
    ("FLINK STATE", "flink_state"),
    *STATE_COLUMNS[2:],
)
SOURCE_COLUMNS = (("SPARK INPUT", "spark_input"), ("SOURCE", "uid"), ("GOES ON AFTER", "end"))


class NumberedUid(click.ParamType[tuple[int, str]]):
    """A `number=uid` argument."""

    name = "number=uid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, str]:
        """Splits at the first equals sign."""
        number, _, uid = str(value).partition("=")
        if not number.isdecimal() or not uid:
            self.fail(f"{value!r} is not of the form NUMBER=UID", param, ctx)
        return int(number), uid


class NamedUid(click.ParamType[tuple[str, str]]):
    """A `name=uid` argument."""

    name = "name=uid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Splits at the last equals sign."""
        name, _, uid = str(value).rpartition("=")
        if not name or not uid:
            self.fail(f"{value!r} is not of the form NAME=UID", param, ctx)
        return name, uid


def import_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of every import."""
    for option in reversed(
        (
            click.option(
                "--program",
                required=True,
                type=click.Path(path_type=Path),
                help="The .py or .zip file of the job that goes on.",
            ),
            click.option("--parameter", "-P", "parameters", type=Pair(), multiple=True, help="A parameter, key=value."),
            click.option("--to", "target", metavar="LOCATION", help="Write the savepoint to STORE/NAME/savepoints/ID."),
            click.option("--dry-run", is_flag=True, help="Write nothing; show what would be taken."),
            click.option(
                "--hash", "hash_id", type=click.Choice(["spark", "java"]), default="spark", help="The hash of keys."
            ),
            click.option("--spark-conf", "conf", type=Pair(), multiple=True, help="A setting of Spark, key=value."),
        )
    ):
        command = option(command)
    return command


@click.group("import")
def import_state() -> None:
    """Bring the state of other systems into a savepoint."""


@import_state.command()
@click.argument("checkpoint")
@import_options
@click.option(
    "--operator", "operators", type=NumberedUid(), multiple=True, help="The job's operator for a Spark operator."
)
@click.option("--drop-operator", "dropped_operators", type=int, multiple=True, help="Leave a Spark operator out.")
@click.option("--source", "sources", type=NumberedUid(), multiple=True, help="The job's source for an input of Spark.")
@click.option("--drop-source", "dropped_sources", type=int, multiple=True, help="Leave an input of Spark out.")
@click.option(
    "--key",
    "keys",
    nargs=3,
    multiple=True,
    metavar="UID COLUMN EXPRESSION",
    help="A column of the key, as SQL over Spark's key.",
)
@click.option(
    "--value",
    "values",
    nargs=3,
    multiple=True,
    metavar="UID STATE EXPRESSION",
    help="The value of a state, or the time of timers, as SQL over Spark's key and value.",
)
@click.option("--parallelism", type=click.IntRange(min=1), help="Number of tasks that write an operator.")
@click.option(
    "--max-parallelism", default=128, show_default=True, type=click.IntRange(1, 32768), help="Number of key groups."
)
@json_option
@pass_session
def spark(
    session: Session,
    /,
    *,
    checkpoint: str,
    program: Path,
    parameters: Sequence[tuple[str, str]],
    target: str | None,
    dry_run: bool,
    operators: Sequence[tuple[int, str]],
    dropped_operators: Sequence[int],
    sources: Sequence[tuple[int, str]],
    dropped_sources: Sequence[int],
    keys: Sequence[tuple[str, str, str]],
    values: Sequence[tuple[str, str, str]],
    parallelism: int | None,
    max_parallelism: int,
    hash_id: str,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Write a savepoint from the CHECKPOINT directory of a Spark query.

    The query must be stopped. The savepoint has its state, source positions and watermark after its last committed
    batch. The job's program runs up to env.execute(), to learn its operators and sources.
    """
    _check(program, target, dry_run=dry_run)
    from keyscale.state_import import import_spark_checkpoint, local_session

    with local_session(dict(conf)) as running:
        report = import_spark_checkpoint(
            running,
            checkpoint,
            program=program,
            to=target,
            parameters=dict(parameters),
            operators={**dict(operators), **dict.fromkeys(dropped_operators)},
            sources={**dict(sources), **dict.fromkeys(dropped_sources)},
            keys={(uid, column): expression for uid, column, expression in keys},
            values={(uid, name): expression for uid, name, expression in values},
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            hash_id=hash_id,
        ).to_json()

    tables = ((report["states"], STATE_COLUMNS), (report["sources"], SOURCE_COLUMNS))
    _show(session, report, ("location", "batch", "watermark_ms"), tables)


@import_state.command()
@click.argument("location")
@import_options
@click.option(
    "--operator", "operators", type=NamedUid(), multiple=True, help="The job's operator for a uid or id of Flink."
)
@click.option("--drop-operator", "dropped_operators", multiple=True, help="Leave an operator of Flink out.")
@click.option(
    "--state",
    "states",
    nargs=3,
    multiple=True,
    metavar="UID NAME STATE",
    help="The state of the job's operator for a state of Flink.",
)
@click.option("--drop-state", "dropped_states", nargs=2, multiple=True, metavar="UID NAME", help="Leave a state out.")
@click.option(
    "--parallelism", default=1, show_default=True, type=click.IntRange(min=1), help="Number of parts of an operator."
)
@click.option("--max-parallelism", type=click.IntRange(1, 32768), help="Number of key groups. Default: that of Flink.")
@json_option
@pass_session
def flink(
    session: Session,
    /,
    *,
    location: str,
    program: Path,
    parameters: Sequence[tuple[str, str]],
    target: str | None,
    dry_run: bool,
    operators: Sequence[tuple[str, str]],
    dropped_operators: Sequence[str],
    states: Sequence[tuple[str, str, str]],
    dropped_states: Sequence[tuple[str, str]],
    parallelism: int,
    max_parallelism: int | None,
    hash_id: str,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Write a savepoint from a canonical savepoint of Flink at LOCATION.

    LOCATION is a directory on this host. No Flink is needed. The job's program runs up to env.execute(), to learn its
    operators and states.
    """
    _check(program, target, dry_run=dry_run)
    from keyscale.state_import import import_flink_savepoint, local_session

    with local_session(dict(conf)) as running:
        report = import_flink_savepoint(
            running,
            location,
            program=program,
            to=target,
            parameters=dict(parameters),
            operators={**dict(operators), **dict.fromkeys(dropped_operators)},
            states={**{(uid, name): state for uid, name, state in states}, **dict.fromkeys(dropped_states)},
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            hash_id=hash_id,
        ).to_json()
    _show(session, report, ("location",), ((report["states"], FLINK_COLUMNS), (report["sources"], SOURCE_COLUMNS[1:])))


def _check(program: Path, target: str | None, *, dry_run: bool) -> None:
    """Checks the arguments before Spark starts.

    Raises:
        InvalidArgumentError: They contradict each other, or the program is missing.
    """
    if dry_run == (target is not None):
        raise InvalidArgumentError("give either --to LOCATION or --dry-run")
    if not program.is_file() or program.suffix not in {".py", ".zip"}:
        raise InvalidArgumentError(f"{program} is missing, or is neither a .py nor a .zip file")


def _show(
    session: Session,
    report: dict[str, Any],
    facts: Sequence[str],
    tables: Sequence[tuple[Any, Sequence[tuple[str, str]]]],
) -> None:
    """Shows the report of an import."""

    def render(console: Any) -> None:
        console.print(make_fields({name: report[name] for name in facts}))
        for rows, columns in tables:
            if rows:
                console.print()
                console.print(make_table(rows, columns))
        for note in report["notes"]:
            console.print(f"- {note}", markup=False, soft_wrap=True)

    session.output.show(report, render)
