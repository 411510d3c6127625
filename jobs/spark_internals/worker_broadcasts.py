"""The broadcast variables of a Python worker; Spark counts them per connection.

With each task Spark sends a worker only changes: the variables that it does not hold yet, and the variables to drop. So
a worker that takes over a connection must hold the variables of the previous worker: a missing variable to drop or to
read fails the task.

It relies on `pyspark.core.broadcast._broadcastRegistry`, which has the variables of a worker by their id, and on
`Broadcast`, which reads its value from the file `_path` at first use (since Spark 2.4). If Spark encrypts its files, a
variable has a value and no file.

The switch `worker-exchange` turns it off, together with the exchange that needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.core import broadcast

if TYPE_CHECKING:
    from collections.abc import Mapping


def held_broadcasts() -> dict[int, str] | None:
    """Returns the file of each variable that this worker holds, by id.

    Returns None if a variable has no file.
    """
    paths = {}
    for number, held in broadcast._broadcastRegistry.items():
        path: str | None = getattr(held, "_path", None)
        if path is None or not Path(path).is_file():  # Spark may delete the file of a value that was read
            return None
        paths[number] = path
    return paths


def hold_broadcasts(paths: Mapping[int, str]) -> None:
    """Replaces the variables that this worker holds.

    Values that it has already read are kept.
    """
    registry = broadcast._broadcastRegistry
    known = dict(registry)
    registry.clear()
    for number, path in paths.items():
        registry[number] = known.get(number) or broadcast.Broadcast(path=path)
