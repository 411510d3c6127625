"""The program that Spark forks Python workers from: it imports once what the tasks of all workers need.

A worker that imports for itself takes a third of a second of processor time for it.
"""

from __future__ import annotations

import keyscale.jobs.runtime.executor.subtask_jobs
import keyscale.jobs.runtime.executor.task
import keyscale.jobs.sinks.parquet_output  # noqa: F401 - see above
from keyscale.jobs.spark_internals.python_daemon import run_daemon

if __name__ == "__main__":
    run_daemon()
