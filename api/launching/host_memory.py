"""The memory that programs of this host can still get."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from .enclosures import own_cgroup


def free_memory_bytes() -> int:
    """Returns the free memory of the host and of this process's cgroup."""
    free = psutil.virtual_memory().available
    group = own_cgroup(Path("/proc/self/mountinfo"), Path("/proc/self/cgroup"))
    if group is not None:
        with contextlib.suppress(OSError, ValueError):  # no limit, or none that this process may read
            free = min(free, int((group / "memory.max").read_text()) - _unreclaimable_bytes(group))
    return free


def _unreclaimable_bytes(group: Path) -> int:
    """Returns the memory of a cgroup without the page cache of files."""
    shares = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int((group / "memory.current").read_text()) - int(shares["inactive_file"])
