"""The end of the JVM that has started this process.

It relies on `SparkContext._jvm`, PySpark's private reference to the JVM (since Spark 0.7), on `spark-submit` as the
parent of this process, and on Spark leaving this process alone when the JVM exits.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ..protocol.exit_codes import EXIT_ASLEEP, SIGNAL_ASLEEP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAIT_SECONDS = 20.0
_POLL_SECONDS = 0.05


def end_jvm(spark: SparkSession) -> None:
    """Ends Spark and the JVM of spark-submit; this process goes on.

    Its output, which the JVM has copied, goes where the JVM's output went.
    """
    parent = os.getppid()
    jvm = spark.sparkContext._jvm
    with contextlib.suppress(Exception):  # executors may be gone
        spark.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        output = os.open(f"/proc/{parent}/fd/1", os.O_WRONLY)
    except OSError:  # writing to an ended JVM would end this process
        output = os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    threading.Thread(target=_exit, args=(jvm,), name="jvm-exit", daemon=True).start()
    until = time.monotonic() + _WAIT_SECONDS
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    if os.getppid() == parent:
        os.kill(parent, SIGNAL_ASLEEP)


def _exit(jvm: Any) -> None:
    """Asks the JVM to exit.

    It answers never, and runs its shutdown hooks first, which may take any time.
    """
    with contextlib.suppress(Exception):
        jvm.java.lang.System.exit(EXIT_ASLEEP)
