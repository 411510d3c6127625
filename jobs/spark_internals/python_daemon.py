"""The daemon that Spark forks its Python workers from.

It is Spark's own daemon with the exchange of `socket_exchange`.

It relies on:

- the setting `spark.python.daemon.module` (since Spark 2.4, undocumented), which names the module that Spark runs as
  a daemon: `jobs/runtime/executor/worker_daemon.py`;
- `pyspark.daemon.manager`, which forks a process per worker and calls `pyspark.daemon.worker` once per task by that
  name, with the worker's connection to Spark and whether Spark has accepted the worker (since Spark 2.4).

With the switch `worker-exchange` off, Spark runs its own daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark.daemon

from .socket_exchange import socket_exchange
from .worker_processes import settle

if TYPE_CHECKING:
    import socket

_run_task = pyspark.daemon.worker


def run_daemon() -> None:
    """Runs the daemon until Spark ends it.

    Its workers share the modules that it has imported.
    """
    socket_exchange()  # before the first fork
    settle()
    pyspark.daemon.worker = _run_task_at_home
    pyspark.daemon.manager()


def _run_task_at_home(sock: socket.socket, authenticated: bool) -> int:
    """Runs a task, on an exchanged connection if need be.

    The first task of a worker is never exchanged: before Spark has accepted the worker, the connection's bytes are not
    a task.
    """
    if authenticated:
        socket_exchange().await_task(sock)
    exit_code = _run_task(sock, authenticated)
    if not exit_code:
        socket_exchange().open()
    return exit_code
