"""The directory of temporary files of tests: in memory if there is room, as most of them wait for a disk otherwise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a directory of its own in it
FREE_BYTES_MIN = 4 << 30
ROOT_VARIABLE = "PYTEST_DEBUG_TEMPROOT"


def use_memory(memory: Path = MEMORY) -> None:
    """Makes pytest create `tmp_path` in memory, unless the caller has chosen another place."""
    if memory.is_dir() and shutil.disk_usage(memory).free >= FREE_BYTES_MIN:
        os.environ.setdefault(ROOT_VARIABLE, str(memory))
