"""Where this Keyscale is installed, and which version it is."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.2.0"

_PACKAGE = Path(__file__).parent

IMPORT_PATH = _PACKAGE.parent
"""The directory from which a process imports this very `keyscale`: `src` of a checkout, or site-packages."""

DRIVER_PROGRAM = _PACKAGE / "jobs" / "runtime" / "driver" / "main.py"
"""The script that spark-submit runs as a job's driver."""

LOADER_PROGRAM = _PACKAGE / "jobs" / "runtime" / "driver" / "program_loader.py"
"""The script that spark-submit runs to see what a job's program declares."""

EXAMPLES = _PACKAGE / "jobs" / "examples"
"""The example jobs: scripts that can be uploaded as they are."""


def default_home() -> Path:
    """Returns the folder of the embedded control plane: `.keyscale` in the checkout, else in the user's home."""
    checkout = IMPORT_PATH.parent
    return (checkout if (checkout / "keyscale").is_file() else Path.home()) / ".keyscale"
