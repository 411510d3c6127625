"""The output of `python -m keyscale.state dump` for a checkpoint or savepoint."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def dump(location: str, operator: str, state: str, scratch: Path) -> list[dict[str, Any]]:
    """All entries of a state, as the command writes them."""
    scratch.mkdir(parents=True, exist_ok=True)
    file = scratch / f"{operator}-{state}.parquet"
    command = [sys.executable, "-m", "keyscale.state", "dump", location]
    command += ["--operator", operator, "--state", state, "--output", str(file), "--scratch", str(scratch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [dict(row) for row in parquet.read_table(file).to_pylist()]
