"""The number of random histories that tests run, and the directory of their files."""

from __future__ import annotations

import os
from pathlib import Path

EXAMPLES = int(os.environ.get("KEYSCALE_TEST_EXAMPLES", "6"))
# With RocksDB's files in memory the histories run several times as fast.
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
