"""Named steps at which a fault test can hold or kill a process. Without a test they do nothing.

`KEYSCALE_SYNC_POINT` names the step (`name`, or `name@n` for the n-th time that this process reaches it) and
`KEYSCALE_SYNC_DIRECTORY` a directory. A process that reaches the step creates a file `<name>.<pid>` there and waits
until a file `<name>.go` appears; the test then kills, stops or releases it. Processes that reach the step after the
release pass. A step of another name costs one dictionary lookup.
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
    """Marks that this process is at a step; returns at once unless a test holds it there."""
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
