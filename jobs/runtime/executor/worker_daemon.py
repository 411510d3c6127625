"""The program that Spark forks Python workers from.

It imports the modules of all workers' tasks once. A worker that imports for itself takes a third of a second of
processor time.
"""

from __future__ import annotations

import faulthandler
import os
import signal

from keyscale.log_lines import configure_worker_logging

from ...sinks import parquet_output  # noqa: F401 - see above
from ...spark_internals.python_daemon import run_daemon
from . import subtask_jobs, task  # noqa: F401 - see above
from .worker_stacks import NAME_VARIABLE, offer_stacks_in_forks

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # its workers write the stacks of their threads, too
    if name := os.environ.get(NAME_VARIABLE):
        offer_stacks_in_forks(name)
    configure_worker_logging(os.environ)
    run_daemon()
