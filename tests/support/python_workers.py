"""The Python workers of the Spark session in this process."""

from __future__ import annotations

import psutil

from tests.support.driver_process import command_line


def kill_python_workers() -> int:
    """Ends the workers that Spark's daemon has forked in this process's JVM; it forks new ones as they are needed. How many."""
    daemons = [
        process
        for process in psutil.Process().children(recursive=True)
        if "jobs.runtime.python_daemon" in command_line(process)
    ]
    workers = [process for process in daemons if process.parent() in daemons]
    for worker in workers:
        worker.kill()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert len(gone) == len(workers), alive
    return len(workers)
