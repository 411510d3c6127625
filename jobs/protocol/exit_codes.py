"""The exit codes of a driver's processes, for their supervisor."""

from __future__ import annotations

EXIT_ASLEEP = 75
"""The JVM of a driver has ended, and the driver goes on without Spark."""
