"""The words between a spare driver and its supervisor; importable without pyspark.

The driver connects to a socket beside its work directory. It says that it is warm, gets one line, a JSON object with
the variables of its run, and says that it has taken them.
"""

from __future__ import annotations

SPARE_VARIABLE = "KEYSCALE_SPARE"
"""Set in the environment of a driver that waits for its run."""
ASSIGNMENT_SOCKET = "assignment"
READY = b"ready\n"
TAKEN = b"taken\n"
