"""Steps at which a fault test can hold or kill a process.

`KEYSCALE_FAILPOINT` names the step (`name`, or `name@n` for the n-th time that this process reaches it),
`KEYSCALE_FAILPOINT_DIRECTORY` a directory. A process that reaches the step creates a file `<name>.<pid>` there and
waits for a file `<name>.go`; meanwhile the test kills, stops or releases the process. After the release, processes pass
the step. Without the variable a step costs one dictionary lookup.

With `KEYSCALE_FAILPOINT=*` the file `point` in the directory names the step. The directory may be a symbolic link, so
that a test can choose another step while processes run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FAILPOINT = "KEYSCALE_FAILPOINT"
FAILPOINT_DIRECTORY = "KEYSCALE_FAILPOINT_DIRECTORY"
CHOSEN_LATER = "*"
POINT_FILE = "point"
_POLL_SECONDS = 0.005
_reached: dict[tuple[Path, str], int] = {}


def failpoint(name: str) -> None:
    """Waits at a step if a test holds it.

    Returns at once otherwise.
    """
    wanted = os.environ.get(FAILPOINT)
    if wanted is None:
        return
    directory = Path(os.environ[FAILPOINT_DIRECTORY]).resolve()
    if wanted == CHOSEN_LATER:
        wanted = _chosen(directory)
    point, _, nth = wanted.partition("@")
    if point != name:
        return
    _reached[directory, name] = _reached.get((directory, name), 0) + 1
    if nth and _reached[directory, name] != int(nth):
        return
    released = directory / f"{name}.go"
    if released.exists():
        return
    (directory / f"{name}.{os.getpid()}").touch()
    while not released.exists():
        time.sleep(_POLL_SECONDS)


def _chosen(directory: Path) -> str:
    try:
        return (directory / POINT_FILE).read_text()
    except FileNotFoundError:
        return ""
