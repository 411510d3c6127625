"""Where Keyscale is installed, and its version."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.2.0"

_PACKAGE = Path(__file__).parent

IMPORT_PATH = _PACKAGE.parent
"""The directory from which processes import this `keyscale`.

It is `src` of a checkout, or site-packages.
"""

DRIVER_PROGRAM = _PACKAGE / "jobs" / "runtime" / "driver" / "main.py"
"""The script that spark-submit runs as a job's driver."""

LOADER_PROGRAM = _PACKAGE / "jobs" / "runtime" / "driver" / "program_loader.py"
"""The script that spark-submit runs to read a program's declarations."""

EXAMPLES = _PACKAGE / "jobs" / "examples"
"""The example jobs, ready for upload."""


def default_home() -> Path:
    """Returns the folder of the embedded control plane.

    It is `.keyscale` in the checkout, or else in the user's home.
    """
    checkout = IMPORT_PATH.parent
    return (checkout if (checkout / "keyscale").is_file() else Path.home()) / ".keyscale"
