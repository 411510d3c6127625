"""Named sync points: where a fault test may hold or kill a process at an exact step. Nothing happens unless asked for.

`KEYSCALE_SYNC_POINT` names the step (`name`, or `name@n` for the n-th time this process reaches it) and
`KEYSCALE_SYNC_DIRECTORY` a directory. A process that reaches the step leaves a file `<name>.<pid>` there and waits until a
file `<name>.go` appears, or for ever: the test then kills, stops or releases it. Processes that come after the release
pass. A step of another name costs one dictionary lookup.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

SYNC_POINT = "KEYSCALE_SYNC_POINT"
SYNC_DIRECTORY = "KEYSCALE_SYNC_DIRECTORY"
_POLL_SECONDS = 0.005
_reached: dict[str, int] = {}


def reach(name: str) -> None:
    """Say that this process is at a step; returns at once unless a test holds it there."""
    wanted, _, nth = os.environ.get(SYNC_POINT, "").partition("@")
    if wanted != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if nth and _reached[name] != int(nth):
        return
    directory = Path(os.environ[SYNC_DIRECTORY])
    released = directory / f"{name}.go"
    if released.exists():
        return
    (directory / f"{name}.{os.getpid()}").touch()
    while not released.exists():
        time.sleep(_POLL_SECONDS)
