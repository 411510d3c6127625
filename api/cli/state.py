"""The commands on the state of jobs, checkpoints and savepoints.

The commands on a LOCATION read the object store themselves, without a control plane. Each imports the reading of state,
which takes half a second, when it runs.
"""
# ruff: noqa: PLC0415 (as above)

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from keyscale.client.change_limits import check_count, check_size
from keyscale.client.request_paths import job_path
from keyscale.units import counted

from .errors import CliError, InvalidArgumentError
from .output import console_for, make_fields, make_table
from .session import Session, json_option, pass_session
from .state_import import import_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

TABLE_COLUMNS = (("OPERATOR", "operator"), ("STATE", "state"), ("KIND", "kind"), ("COLUMNS", "columns"))
SUBTASK_COLUMNS = (
    ("OPERATOR", "operator"),
    ("SUBTASK", "subtask"),
    ("FROM GROUP", "key_group_start"),
    ("TO GROUP", "key_group_end"),
    ("SHARDS", "shards"),
    ("FILES", "files"),
    ("SIZE", "state_size_bytes"),
)
ENTRIES_COLUMNS = (("OPERATOR", "operator"), ("STATE", "state"), ("ENTRIES", "entries"), ("SIZE", "size_bytes"))
GROUP_COLUMNS = (
    ("OPERATOR", "operator"),
    ("LARGEST KEY GROUP", "key_group"),
    ("ENTRIES", "entries"),
    ("SIZE", "size_bytes"),
)
DIFFERENCE_COLUMNS = (
    ("OPERATOR", "operator"),
    ("STATE", "state"),
    ("ADDED", "added"),
    ("REMOVED", "removed"),
    ("CHANGED", "changed"),
)
CHANGE_COLUMNS = (
    ("OPERATOR", "operator"),
    ("STATE", "state"),
    ("CHANGE", "change"),
    ("ROW", "row"),
    ("BEFORE", "before"),
    ("AFTER", "after"),
)
HISTORY_COLUMNS = (
    ("BATCH", "batch_id"),
    ("COMMITTED", "committed_at_ms"),
    ("STATE", "state"),
    ("CHANGE", "change"),
    ("ROW", "row"),
)
FORMATS = ("table", "csv", "json", "parquet")

scratch_option = click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory for temporary files, with room for an operator's state (default: the system's).",
)
key_option = click.option("--key", required=True, help="The key; with several columns, a JSON list.")
operator_option = click.option("--operator", required=True, help="The operator's uid.")


class StateDamagedError(CliError):
    """A verification has found problems in a snapshot."""

    code = "CLI_STATE_DAMAGED"
    title = "The snapshot is damaged"
    domain = "external"
    advice = (
        "Start from another checkpoint or savepoint, or restore the named objects from a backup of the object store."
    )


@click.group()
def state() -> None:
    """Read and change the state of jobs, checkpoints and savepoints.

    A LOCATION is the URL of a manifest, as `savepoints list` shows it, or of the directory with the manifest. It is
    read with this process's own access to the object store. `get` and `history` ask the control plane, and so do `set`
    and `delete` for a JOB.
    """


state.add_command(import_state)


@state.command()
@click.argument("location")
@json_option
@pass_session
def tables(session: Session, location: str) -> None:
    """List the tables of a snapshot: each state with its columns."""
    from keyscale.state_io import StateReader
    from keyscale.state_io.snapshot_facts import table_facts

    with StateReader.open(location) as reader:
        found = [table_facts(table) for table in reader.tables()]
    session.output.table(found, [_with_columns(each) for each in found], TABLE_COLUMNS)


@state.command()
@click.argument("location")
@click.option("--entries", is_flag=True, help="Read all state, and count the entries and the largest key groups.")
@scratch_option
@json_option
@pass_session
def show(session: Session, location: str, entries: bool, scratch: Path | None) -> None:
    """Show a snapshot: operators, states, subtasks, positions and times."""
    from keyscale.state_io import StateReader
    from keyscale.state_io.snapshot_facts import counts_of, facts_of

    with StateReader.open(location, scratch=scratch) as reader:
        facts = facts_of(reader)
        if entries:
            facts["counts"] = counts_of(reader)
    operators = facts["operators"]
    subtasks = [{"operator": each["uid"], **subtask} for each in operators for subtask in each["subtasks"]]
    found = [_with_columns(table) for each in operators for table in each["tables"]]

    def render(console: Any) -> None:
        console.print(make_fields({name: each for name, each in facts.items() if name not in {"operators", "counts"}}))
        for rows, columns in ((found, TABLE_COLUMNS), (subtasks, SUBTASK_COLUMNS)):
            console.print()
            console.print(make_table(rows, columns))
        if entries:
            for name, columns in (("states", ENTRIES_COLUMNS), ("largest_key_groups", GROUP_COLUMNS)):
                console.print()
                console.print(make_table(facts["counts"][name], columns))

    session.output.show(facts, render)


@state.command()
@click.argument("location")
@click.argument("statement")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="The form of the rows; json is an object per line.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
@click.option("--rows", "rows_max", type=click.IntRange(min=1), default=10_000, show_default=True, help="Rows at most.")
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds at most.",
)
@click.option(
    "--memory-mib", type=click.IntRange(min=64), default=1024, show_default=True, help="Memory of the query at most."
)
@scratch_option
@json_option
@pass_session
def sql(
    session: Session,
    /,
    *,
    location: str,
    statement: str,
    form: str,
    output: Path | None,
    rows_max: int,
    seconds: float,
    memory_mib: int,
    scratch: Path | None,
) -> None:
    """Run a SELECT over the state in a snapshot, in DuckDB's SQL.

    Each state is a table "operator"."state"; a key's columns are fields of the column `key`. For example:

        keyscale state sql LOCATION 'select key.user, value from "count-per-user".clicks order by value desc limit 10'
    """
    from keyscale.state_io.sql import SqlLimits, query

    with query(location, statement, SqlLimits(rows_max, seconds, memory_mib << 20), scratch=scratch) as result:
        _print_rows(result.batches(), result.schema, "json" if session.as_json else form, output)
        if result.is_truncated:
            click.echo(f"only the first {counted(rows_max, 'row')}; --rows raises the limit", err=True)


@state.command()
@click.argument("location")
@operator_option
@click.option("--state", "name", required=True, help="The state's name.")
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file: .parquet, .csv or .json.",
)
@click.option("--nested", is_flag=True, help="Write a whole map or list as one row.")
@scratch_option
def dump(*, location: str, operator: str, name: str, output: Path, nested: bool, scratch: Path | None) -> None:
    """Write all rows of a state to a file."""
    from keyscale.state_io import StateReader

    if output.suffix.removeprefix(".") not in FORMATS[1:]:
        raise InvalidArgumentError("the name of the file ends in .parquet, .csv or .json")
    with StateReader.open(location, scratch=scratch) as reader:
        table = reader.table(operator, name, nested=nested)
        _print_rows(table.batches(), table.schema, output.suffix.removeprefix("."), output)


@state.command()
@click.argument("before")
@click.argument("after")
@click.option("--operator", help="Compare only the states of this operator.")
@click.option("--changes", "shown", type=click.IntRange(min=0), default=20, show_default=True, help="Rows to show.")
@scratch_option
@json_option
@pass_session
def diff(session: Session, before: str, after: str, operator: str | None, shown: int, scratch: Path | None) -> int:  # noqa: PLR0917 - click passes them by name
    """Compare two snapshots of a job: rows added, removed and changed.

    BEFORE and AFTER are locations. The exit code is 4 if there is a difference.
    """
    from keyscale.state_io import StateReader
    from keyscale.state_io.difference import differences
    from keyscale.state_io.row_files import plain_value

    changes: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    old = StateReader.open(before, scratch=scratch, shards_open=16)
    new = StateReader.open(after, scratch=scratch, shards_open=16)
    with old, new:
        for difference in differences(old, new, operator):
            place = {"operator": difference.operator, "state": difference.state}
            for change in difference.changes():
                if len(changes) < shown:
                    values = {"row": change.row, "before": change.before, "after": change.after}
                    plain = {name: plain_value(value) for name, value in values.items()}
                    changes.append({**place, "change": change.kind, **plain})
            numbers = {kind: difference.counts[kind] for kind in ("added", "removed", "changed")}
            counts.append({**place, **numbers})
    total = sum(each["added"] + each["removed"] + each["changed"] for each in counts)

    def render(console: Any) -> None:
        console.print(make_table(counts, DIFFERENCE_COLUMNS))
        if changes:
            console.print()
            rows = [{**each, **{name: _shown(each[name]) for name in ("row", "before", "after")}} for each in changes]
            console.print(make_table(rows, CHANGE_COLUMNS))
        if total > len(changes):
            console.print(f"{total - len(changes):,} more; --changes shows more")

    session.output.show({"states": counts, "changes": changes, "total": total}, render)
    return 4 if total else 0


@state.command()
@click.argument("location")
@scratch_option
@json_option
@pass_session
def verify(session: Session, location: str, scratch: Path | None) -> None:
    """Read every file and every entry of a snapshot, and check them."""
    from keyscale.state_io.verified_state import verify_state

    found = verify_state(location, scratch=scratch)
    session.output.fields(asdict(found))
    if found.problems:
        raise StateDamagedError("; ".join(found.problems))


@state.command()
@click.argument("job")
@operator_option
@click.option("--state", "name", help="The state's name (default: all states and timers of the operator).")
@key_option
@click.option(
    "--at",
    default="latest",
    show_default=True,
    help="latest: after the last committed batch; checkpoint: in the latest checkpoint; batch-N: after batch N;"
    " time-MS: after the last batch by that time, in ms since the epoch.",
)
@click.option("--after", help="Wait until the job has committed this batch, or this record: TOPIC/PARTITION/OFFSET.")
@json_option
@pass_session
def get(
    session: Session, /, *, job: str, operator: str, name: str | None, key: str, at: str, after: str | None
) -> None:
    """Show a key's state, exactly as after one committed batch.

    The job may run or not. A key of several columns is a JSON list, such as '["ada", 17]'. Needs the role OPERATOR.
    """
    path = job_path(job, "state", operator, *([] if name is None else [name]))
    with session.control_plane() as control_plane:
        answer = control_plane.get(path, key=key, at=at, after=after)
    facts = {each: answer[each] for each in ("batch_id", "source_positions", "key", "key_group")}

    def render(console: Any) -> None:
        console.print(make_fields(facts))
        for each in answer["states"]:
            console.print(f"\n{each['state']} ({each['kind']})", markup=False)
            names = list(dict.fromkeys(column for row in each["rows"] for column in row))
            rows = [{column: _shown(value) for column, value in row.items()} for row in each["rows"]]
            console.print(make_table(rows, [(column, column) for column in names]) if rows else "  nothing")

    session.output.show(answer, render)


@state.command()
@click.argument("job")
@operator_option
@click.option("--state", "name", help="Only the changes of this state.")
@key_option
@json_option
@pass_session
def history(session: Session, /, *, job: str, operator: str, name: str | None, key: str) -> None:
    """Show the changes of a key in a job's stored batches.

    Batches are stored until a newer checkpoint replaces them. Needs the role OPERATOR.
    """
    with session.control_plane() as control_plane:
        answer = control_plane.get(job_path(job, "state-history", operator), key=key, state=name)
    rows = [{**change, "row": _shown(change["row"])} for change in answer["changes"]]
    session.output.table(answer, rows, HISTORY_COLUMNS)


_PLACE_OPTIONS = (
    click.option("--namespace", help="The namespace as JSON, for a state with namespaces."),
    click.option("--map-key", help="Change this entry of a map alone; JSON, or text."),
    click.option("--time-ms", type=int, help="The time of a timer."),
    click.option("--id", "savepoint_id", help="The id of the new savepoint (only with a JOB)."),
    click.option(
        "--checkpoint", type=click.IntRange(min=1), help="The checkpoint or savepoint of the JOB (default: the latest)."
    ),
    click.option(
        "--to", "target", help="Where the new savepoint is written: STORE/JOB/savepoints/ID (only with a LOCATION)."
    ),
)


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a change of one key's state."""
    for option in reversed(_PLACE_OPTIONS):
        command = option(command)
    return command


state_option = click.option("--state", "name", help="The state's name, or the timers'.")
lines_option = click.option(
    "--lines",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Change several keys in one savepoint: a file (-: standard input) with a JSON object per line, of operator,"
    ' state, key, and value, time_ms or "delete": true; also namespace and map_key.',
)
one_operator_option = click.option("--operator", help="The operator's uid.")
one_key_option = click.option("--key", help="The key; with several columns, a JSON list.")
LINE_FIELDS = frozenset({"operator", "state", "key", "value", "delete", "namespace", "map_key", "time_ms"})


@state.command("set")
@click.argument("source", metavar="JOB|LOCATION")
@one_operator_option
@state_option
@one_key_option
@lines_option
@click.option("--value", help="The new value as JSON, or text; a whole map is an object, a whole list a list.")
@place_options
@scratch_option
@json_option
@pass_session
def set_key(session: Session, /, *, value: str | None, time_ms: int | None, **options: Any) -> None:
    """Set the state of one or several keys in a new savepoint.

    The savepoint is derived from the latest checkpoint or savepoint of a stopped JOB, and is registered with an event.
    With a LOCATION, it is written with this process's own access to the object store. All other state stays as it is.
    `jobs start JOB --from SAVEPOINT` starts the job from it.
    """
    if options["lines"] is None and (value is None) == (time_ms is None):
        raise InvalidArgumentError("give --value for a state, or --time-ms for timers")
    _change(session, {"value": _json(value), "time_ms": time_ms}, **options)


@state.command("delete")
@click.argument("source", metavar="JOB|LOCATION")
@one_operator_option
@state_option
@one_key_option
@lines_option
@place_options
@scratch_option
@json_option
@pass_session
def delete_key(session: Session, /, *, time_ms: int | None, **options: Any) -> None:
    """Delete the state of one or several keys in a new savepoint.

    The options are as for `state set`. With --lines, each line is a deletion.

    Without --namespace, --map-key and --time-ms, all entries of the key in the state are deleted.
    """
    _change(session, {"deletes": True, "time_ms": time_ms}, **options)


@state.command()
@click.argument("location")
@click.argument("target")
@click.option("--rename-operator", "renamed_operators", nargs=2, multiple=True, metavar="UID NEW", help="Rename.")
@click.option("--drop-operator", "dropped_operators", multiple=True, metavar="UID", help="Leave an operator out.")
@click.option(
    "--rename-state", "renamed_states", nargs=3, multiple=True, metavar="UID STATE NEW", help="Rename a state."
)
@click.option(
    "--drop-state", "dropped_states", nargs=2, multiple=True, metavar="UID STATE", help="Leave a state or timers out."
)
@click.option("--max-parallelism", type=click.IntRange(min=1), help="Another number of key groups.")
@click.option("--hash", "hash_id", type=click.Choice(["spark", "java"]), help="Another hash of keys.")
@scratch_option
@json_option
@pass_session
def transform(
    session: Session,
    /,
    *,
    location: str,
    target: str,
    renamed_operators: tuple[tuple[str, str], ...],
    dropped_operators: tuple[str, ...],
    renamed_states: tuple[tuple[str, str, str], ...],
    dropped_states: tuple[tuple[str, str], ...],
    max_parallelism: int | None,
    hash_id: str | None,
    scratch: Path | None,
) -> None:
    """Write a changed copy of a snapshot to TARGET, which is STORE/JOB/savepoints/ID.

    Values are neither decoded nor encoded. States of renamed operators are named by the operator's old uid.
    """
    from keyscale.state_io import ChangedOperator, transform

    uids: dict[str, str | None] = dict(renamed_operators)
    states: dict[str, dict[str, str | None]] = {}
    for uid, name, new in [*renamed_states, *((uid, name, None) for uid, name in dropped_states)]:
        states.setdefault(uid, {})[name] = new
    changed: dict[str, ChangedOperator | None] = {
        uid: ChangedOperator(uids.get(uid), states.get(uid, {})) for uid in {*uids, *states}
    }
    changed |= dict.fromkeys(dropped_operators)
    written = transform(location, target, changed, max_parallelism=max_parallelism, hash_id=hash_id, scratch=scratch)
    session.output.fields({"location": written})


def _change(  # the options of both commands
    session: Session,
    change: dict[str, Any],
    *,
    source: str,
    operator: str | None,
    name: str | None,
    key: str | None,
    lines: str | None,
    namespace: str | None,
    map_key: str | None,
    savepoint_id: str | None,
    checkpoint: int | None,
    target: str | None,
    scratch: Path | None,
) -> None:
    place = {"operator": operator, "state": name, "key": key}
    if lines is not None:
        if any(
            each is not None for each in (*place.values(), change.get("value"), change["time_ms"], namespace, map_key)
        ):
            raise InvalidArgumentError("--lines has all changes; the other options of a change are for one key")
        changes = _changes_of(lines, deletes=change.get("deletes", False))
    elif None in place.values():
        raise InvalidArgumentError("give --operator, --state and --key, or --lines")
    else:
        changes = [{**change, **place, "namespace": _json(namespace), "map_key": _json(map_key)}]
    if "://" not in source:
        if target is not None:
            raise InvalidArgumentError("--to is for a LOCATION; the savepoint of a JOB is beside its others")
        asked = changes[0] if lines is None else {"changes": changes}
        body = {**asked, "id": savepoint_id, "checkpoint_id": checkpoint}
        if lines is not None:
            check_count(changes)
            check_size(body)
        with session.control_plane() as control_plane:
            session.output.fields(control_plane.post(job_path(source, "state-changes"), body))
        return
    if target is None or savepoint_id is not None or checkpoint is not None:
        raise InvalidArgumentError("a LOCATION needs --to STORE/JOB/savepoints/ID, and neither --id nor --checkpoint")
    from keyscale.state_io import KeyChange, change_keys

    changed = change_keys(source, target, [KeyChange(**each) for each in changes], scratch=scratch)
    effects = [asdict(each) for each in changed.changes]
    session.output.fields({"location": changed.location, **(effects[0] if lines is None else {"changes": effects})})


def _changes_of(path: str, *, deletes: bool) -> list[dict[str, Any]]:
    """Returns the changes in a file of JSON lines, one per line."""
    try:
        with click.open_file(path, encoding="utf-8") as file:
            lines = file.readlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from None
    changes = []
    for number, line in enumerate(lines, 1):
        try:
            given = _strict_json(line)
        except ValueError:
            raise InvalidArgumentError(f'line {number} is not JSON; a float may be "NaN" or "inf"') from None
        if not isinstance(given, dict) or not {"operator", "state", "key"} <= given.keys() <= LINE_FIELDS:
            raise InvalidArgumentError(
                f"line {number} needs operator, state and key, and may have {', '.join(sorted(LINE_FIELDS))}"
            )
        deleted = given.pop("delete", False)
        if not isinstance(deleted, bool) or not all(isinstance(given[name], str) for name in ("operator", "state")):
            raise InvalidArgumentError(f"line {number}: operator and state are text, and delete is true or false")
        key = given["key"] if isinstance(given["key"], str) else json.dumps(given["key"])
        changes.append({**given, "key": key, "deletes": deleted or deletes})
    if not changes:
        raise InvalidArgumentError("--lines has no line")
    return changes


def _json(text: str | None) -> Any:
    """Returns the value of JSON, or else the text itself."""
    try:
        return None if text is None else _strict_json(text)
    except ValueError:
        return text


def _strict_json(text: str) -> Any:
    """Returns the value of JSON, which has no NaN and no infinity."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _with_columns(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, "columns": ", ".join(f"{each['name']} {each['type']}" for each in table["columns"])}


def _print_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, form: str, output: Path | None) -> None:
    from keyscale.state_io.row_files import RowFormat, lines_of, plain_value, write_rows

    if output is not None:
        if form == "table":
            form = output.suffix.removeprefix(".")
        if form not in FORMATS[1:]:
            raise InvalidArgumentError(
                "the name of the file ends in .parquet, .csv or .json, or --format says its form"
            )
        try:
            rows = write_rows(batches, schema, output, RowFormat(form))
        except OSError as error:
            raise InvalidArgumentError(f"{output} cannot be written: {error.strerror}") from None
        click.echo(f"{counted(rows, 'row')} written to {output}", err=True)
        return
    if form == "parquet":
        raise InvalidArgumentError("Parquet needs the name of a file: --output FILE")
    if form != "table":
        sys.stdout.writelines(lines_of(batches, schema, RowFormat(form)))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in schema.names:
        table.add_column(name, overflow="fold")
    for batch in batches:
        for row in batch.to_pylist():
            table.add_row(*(Text(_shown(plain_value(value))) for value in row.values()))
    console_for(sys.stdout).print(table)


def _shown(value: Any) -> str:
    """Returns a plain value as the text of a cell."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
