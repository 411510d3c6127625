"""Runs a job's state on a disk that is full at first. Usage: disk_child.py STORE LOCAL"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from keyscale.identifiers import BatchId
from keyscale.state.errors import DiskFullError
from keyscale.state.objects.errors import StoreFullError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.state_job import StateJob

FILLER_BYTES = 64 << 20


def main(store: str, local_root: str) -> None:
    job = StateJob(LocalObjectStore(Path(store)), Path(local_root))
    job.start(1)
    job.run_batch(dict.fromkeys(range(100), 1))
    filler = Path(local_root) / "filler"
    fill(filler)
    with pytest.raises(DiskFullError):
        job.run_task(0, BatchId(1), dict.fromkeys(range(15_000), 1000))
    with contextlib.suppress(DiskFullError, StoreFullError), job.open(0):
        pass
    filler.unlink()
    assert job.dump() == job.reference
    job.run_batch({1: 1})
    assert job.dump() == job.reference


def fill(filler: Path) -> None:
    """Leaves no free block on the disk."""
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 512, 1):
            try:
                for _ in range(FILLER_BYTES // size):
                    file.write(b"x" * size)
            except OSError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
