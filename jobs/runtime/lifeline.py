"""The driver and spark-submit's JVM live and die together.

The JVM watches this process already, and ends with it; the Python workers watch the JVM. Here is the missing direction.
"""

from __future__ import annotations

import logging
import os
import threading

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.2
EXIT_ORPHANED = 1


def end_with_parent() -> None:
    """End this process, at once and without clean-up, when the process that started it has ended."""
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()


def _watch(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_INTERVAL_SECONDS)
    _log.error("spark-submit has ended, so the driver ends too")
    # Not sys.exit: other threads wait for a JVM that is gone.
    os._exit(EXIT_ORPHANED)
