"""The exit codes of a driver's processes, for their supervisor."""

from __future__ import annotations

import signal

EXIT_ASLEEP = 75
"""The JVM of a driver has ended, and the driver goes on without Spark."""

SIGNAL_ASLEEP = signal.SIGALRM
"""Ends a JVM that does not exit when its driver falls asleep; no JVM handles it, and the kernel never sends it."""

ENDS_ASLEEP = frozenset({EXIT_ASLEEP, -SIGNAL_ASLEEP})
"""How a JVM ends whose driver goes on without Spark."""
