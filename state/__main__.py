"""`python -m keyscale.state`: migrates a checkpoint or savepoint."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.errors import KeyscaleError

from .inspection.checkpoint_reader import CheckpointReader
from .inspection.map_migration import MapMigration, migrate_map
from .layout import location_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        The exit code: 0 done, 1 failed with a coded error, 2 wrong usage.
    """
    options = command_parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="keyscale-state-", dir=options.scratch) as scratch:
            print(_migrate_map(CheckpointReader.open(options.location, Path(scratch)), options))
    except KeyscaleError as error:
        print(f"{error.code}: {error}\n{error.advice}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.strerror}: {error.filename}", file=sys.stderr)
        return 1
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m keyscale.state", description="Migrate a checkpoint or savepoint.")
    commands = parser.add_subparsers(dest="command", required=True)
    migrate = commands.add_parser("migrate-map", help="write a savepoint in which a value state of maps is a map state")
    migrate.add_argument("location", help="the manifest's URL: file:///... or s3://..., ending in manifest.json")
    migrate.add_argument("--operator", required=True, help="the operator's uid")
    migrate.add_argument("--state", required=True, help="the value state's name")
    migrate.add_argument("--map-state", required=True, help="the new map state's name")
    migrate.add_argument(
        "--savepoint-id", required=True, help="the new savepoint's id; it is written beside the job's other savepoints"
    )
    migrate.add_argument(
        "--scratch", type=Path, help="directory for temporary files, with room for one subtask's state"
    )
    return parser


def _migrate_map(reader: CheckpointReader, options: argparse.Namespace) -> str:
    migration = MapMigration(options.operator, options.state, options.map_state, options.savepoint_id)
    migrated = migrate_map(reader, migration)
    location = location_of(reader.store.url, migrated.manifest.path)
    return f"{migrated.keys:,} maps are {migrated.entries:,} map entries in {location}"


if __name__ == "__main__":
    sys.exit(main())
