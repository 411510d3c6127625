"""`python -m keyscale.state`: inspects, dumps or migrates a checkpoint or savepoint."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from keyscale.errors import KeyscaleError

from .inspection.checkpoint_reader import CheckpointReader
from .inspection.dump import write_parquet
from .inspection.map_migration import MapMigration, migrate_map
from .inspection.summary import summarize
from .layout import location_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .inspection.summary import CheckpointSummary, OperatorSummary


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        The exit code: 0 done, 1 failed with a coded error, 2 wrong usage.
    """
    options = command_parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="keyscale-state-", dir=options.scratch) as scratch:
            reader = CheckpointReader.open(options.location, Path(scratch))
            print(_COMMANDS[options.command](reader, options))
    except KeyscaleError as error:
        print(f"{error.code}: {error}\n{error.advice}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.strerror}: {error.filename}", file=sys.stderr)
        return 1
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m keyscale.state", description="Inspect, dump or migrate a checkpoint or savepoint."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="show operators, states, schemas, key groups, entries and bytes")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")
    dump = commands.add_parser("dump", help="write a state's entries as a Parquet file")
    dump.add_argument("--operator", required=True, help="the operator's uid")
    dump.add_argument("--state", required=True, help="the state's name")
    dump.add_argument("--output", required=True, type=Path, help="the file to write")
    migrate = commands.add_parser("migrate-map", help="write a savepoint in which a value state of maps is a map state")
    migrate.add_argument("--operator", required=True, help="the operator's uid")
    migrate.add_argument("--state", required=True, help="the value state's name")
    migrate.add_argument("--map-state", required=True, help="the new map state's name")
    migrate.add_argument(
        "--savepoint-id", required=True, help="the new savepoint's id; it is written beside the job's other savepoints"
    )
    for command in (inspect, dump, migrate):
        command.add_argument("location", help="the manifest's URL: file:///... or s3://..., ending in manifest.json")
        command.add_argument(
            "--scratch", type=Path, help="directory for temporary files, with room for one subtask's state"
        )
    return parser


def _dump(reader: CheckpointReader, options: argparse.Namespace) -> str:
    entries = write_parquet(reader, reader.operator(options.operator), options.state, options.output)
    return f"{entries:,} entries written to {options.output}"


def _migrate_map(reader: CheckpointReader, options: argparse.Namespace) -> str:
    migration = MapMigration(options.operator, options.state, options.map_state, options.savepoint_id)
    migrated = migrate_map(reader, migration)
    location = location_of(reader.store.url, migrated.manifest.path)
    return f"{migrated.keys:,} maps are {migrated.entries:,} map entries in {location}"


def _inspect(reader: CheckpointReader, options: argparse.Namespace) -> str:
    summary = summarize(reader)
    return msgspec.json.format(msgspec.json.encode(summary)).decode() if options.json else "\n".join(_report(summary))


def _report(summary: CheckpointSummary) -> Iterable[str]:
    name = f"savepoint {summary.savepoint_id}" if summary.savepoint_id else f"checkpoint {summary.checkpoint_id}"
    yield f"{name} of job {summary.job_id}, after batch {summary.batch_id}, by attempt {summary.attempt}"
    key_groups = f"{summary.max_parallelism} key groups by the {summary.hash_id} hash"
    yield f"{summary.state_size_bytes:,} bytes of files; {key_groups}"
    for operator in summary.operators:
        yield ""
        yield from _report_operator(operator)


def _report_operator(operator: OperatorSummary) -> Iterable[str]:
    key = ", ".join(f"{name} {_type(of_type)}" for name, of_type in operator.key) or "(no state yet)"
    yield f"operator {operator.uid}, parallelism {operator.parallelism}, key: {key}"
    states = [
        (
            state.name,
            str(state.schema.kind) if state.schema else "timers",
            _type(state.schema.formats[-1].type) if state.schema else "",
            f"{state.entries:,}",
            f"{state.bytes:,}",
        )
        for state in operator.states
    ]
    yield from _table(("state", "kind", "type", "entries", "bytes"), states)
    subtasks = [
        (
            str(subtask.subtask),
            f"{subtask.key_group_start} to {subtask.key_group_end}",
            str(subtask.shards),
            str(subtask.files),
            f"{subtask.file_bytes:,}",
        )
        for subtask in operator.subtasks
    ]
    yield from _table(("subtask", "key groups", "shards", "files", "file bytes"), subtasks)
    largest = [(str(each.key_group), f"{each.entries:,}", f"{each.bytes:,}") for each in operator.largest_key_groups]
    yield from _table((f"largest of {operator.key_groups_with_state} key groups", "entries", "bytes"), largest)


def _type(of_type: str | list[object]) -> str:
    return of_type if isinstance(of_type, str) else msgspec.json.encode(of_type).decode()


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for cells in (heads, *rows):
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


_COMMANDS = {"dump": _dump, "inspect": _inspect, "migrate-map": _migrate_map}

if __name__ == "__main__":
    sys.exit(main())
