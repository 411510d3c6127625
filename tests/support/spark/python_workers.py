"""The Python workers of the Spark session in this process."""

from __future__ import annotations

import contextlib

import psutil

from keyscale.jobs.protocol.spark_settings import REQUIRED_SETTINGS
from tests.support.drivers.driver_process import command_line


def kill_python_workers() -> int:
    """Ends the workers that this JVM's Python daemon has forked; it forks new ones when needed. Returns how many."""
    daemons = [
        process
        for process in psutil.Process().children(recursive=True)
        if REQUIRED_SETTINGS["spark.python.daemon.module"] in command_line(process)
    ]
    workers = []
    for process in daemons:
        with contextlib.suppress(psutil.NoSuchProcess):  # one may end by itself meanwhile
            if process.parent() in daemons:
                workers.append(process)
                process.kill()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert len(gone) == len(workers), alive
    return len(workers)
