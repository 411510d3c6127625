"""The broadcast variables that a Python worker holds, which Spark counts per connection.

Spark sends a worker with each task only what changes: the variables that it does not hold yet, and those to drop. So
whoever takes over a connection must hold what the worker before held: a variable to drop that is not there fails the
task, as does one to read.

It relies on `pyspark.core.broadcast._broadcastRegistry`, which has the variables of a worker by their id, and on
`Broadcast`, which reads its value from the file `_path` when it is first asked for it (since Spark 2.4). Where Spark
encrypts its files, a variable has a value and no file.

Switched off by `worker-exchange`, with the exchange that needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.core import broadcast

if TYPE_CHECKING:
    from collections.abc import Mapping


def held_broadcasts() -> dict[int, str] | None:
    """Returns the file of each variable that this worker holds by its id; None if one of them has no file."""
    paths = {}
    for number, held in broadcast._broadcastRegistry.items():
        path: str | None = getattr(held, "_path", None)
        if path is None or not Path(path).is_file():  # Spark may delete the file of a value that was read
            return None
        paths[number] = path
    return paths


def hold_broadcasts(paths: Mapping[int, str]) -> None:
    """Makes these the variables that this worker holds. Values that it has read already are kept."""
    registry = broadcast._broadcastRegistry
    known = dict(registry)
    registry.clear()
    for number, path in paths.items():
        registry[number] = known.get(number) or broadcast.Broadcast(path=path)
