"""What a JVM with Spark writes to standard error of a command."""

from __future__ import annotations

import os
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_GREETING = re.compile(
    rb"WARNING: Using incubator modules: |Using Spark's default log4j profile: |Setting default log level to "
    rb"|To adjust logging level use |Setting Spark log level to |.* WARN NativeCodeLoader: "
)
_STANDARD_ERROR = 2


@contextmanager
def without_greeting() -> Iterator[threading.Thread]:
    """Drops the lines that each JVM with Spark writes when it starts.

    Java has no option for some of them. All other lines of processes that are started in the block, whenever they are
    written, reach standard error.

    Yields:
        The thread that passes lines on. It ends with the last of the processes.
    """
    kept = os.dup(_STANDARD_ERROR)
    reading, writing = os.pipe()
    os.dup2(writing, _STANDARD_ERROR)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, os.dup(kept)), name="jvm-output", daemon=True)
    passing.start()
    try:
        yield passing
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)


def _pass_on(reading: int, error: int) -> None:
    with open(reading, "rb") as lines, open(error, "wb", buffering=0) as target:
        for line in lines:
            if _GREETING.match(line) is None:
                target.write(line)
