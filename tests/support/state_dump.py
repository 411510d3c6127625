"""What `python -m state dump` says of a checkpoint or savepoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from pyarrow import parquet

REPOSITORY = Path(__file__).parents[2]


def dump(location: str, operator: str, state: str, scratch: Path) -> list[dict[str, Any]]:
    """All entries of a state, as the command writes them."""
    scratch.mkdir(parents=True, exist_ok=True)
    file = scratch / f"{operator}-{state}.parquet"
    command = [sys.executable, "-m", "state", "dump", location]
    command += ["--operator", operator, "--state", state, "--output", str(file), "--scratch", str(scratch)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [dict(row) for row in parquet.read_table(file).to_pylist()]
