"""What Spark starts its Python workers by, `spark.python.daemon.module`: Spark's own daemon, whose workers share a switchboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark.daemon

from jobs.runtime.switchboard import switchboard

if TYPE_CHECKING:
    import socket

_run_task = pyspark.daemon.worker


def main() -> None:
    """Run the daemon until Spark ends it."""
    switchboard()  # before the first fork
    pyspark.daemon.worker = _run_task_at_home
    pyspark.daemon.manager()


def _run_task_at_home(sock: socket.socket, authenticated: bool) -> int:
    """As Spark's, but for the first task of a worker: nothing can be told of it before Spark knows the worker."""
    if authenticated:
        switchboard().await_task(sock)
    exit_code = _run_task(sock, authenticated)
    if not exit_code:
        switchboard().open()
    return exit_code


if __name__ == "__main__":
    main()
