"""Facts about the machine and the versions of a measurement."""

from __future__ import annotations

import datetime as dt
import os
import platform
from importlib.metadata import version
from pathlib import Path

import psutil


def describe(cores: int) -> str:
    """Returns one line for below a table."""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    memory_gib = psutil.virtual_memory().total / (1 << 30)
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "rocksdict", "pyarrow", "numpy"))
    return (
        f"{today}; {_processor()}, {cores} of {os.cpu_count()} cores, {memory_gib:.0f} GiB memory; "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, {versions}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
