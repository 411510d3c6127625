"""How many random histories are played, and where their files are."""

from __future__ import annotations

import os
from pathlib import Path

EXAMPLES = int(os.environ.get("KEYSCALE_TEST_EXAMPLES", "12"))
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - RocksDB's files in memory play several times as fast
