"""The client is imported by scripts: quickly, and without what only the control plane needs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "alembic",
    "boto3",
    "fastapi",
    "numpy",
    "pyarrow",
    "psycopg",
    "pyspark",
    "rocksdict",
    "sqlalchemy",
    "starlette",
)
SECONDS_MAX = 1.0
"""Of the processor; about 0.4 on the machine where it was written."""
SCRIPT = """
import sys, time
import {module}
print(time.process_time(), *(name for name in {heavy!r} if name in sys.modules))
"""


def imported(module: str) -> tuple[float, list[str]]:
    """Returns the time of a process that imports a module, and the heavy packages that come with the module."""
    script = SCRIPT.format(module=module, heavy=HEAVY)
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, *heavy = answer.stdout.split()
    return float(seconds), heavy


def test_the_client_is_imported_quickly_and_without_the_control_plane() -> None:
    seconds, heavy = imported("keyscale.client")
    assert (heavy, seconds < SECONDS_MAX) == ([], True), seconds


def test_a_heavy_package_is_noticed() -> None:
    assert imported("sqlalchemy")[1] == ["sqlalchemy"]
