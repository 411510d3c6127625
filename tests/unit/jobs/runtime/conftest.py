from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _own_interpreter_state() -> Iterator[None]:
    """Restores `__main__`, which a process that a later test spawns would run again, and the path."""
    main, path = sys.modules["__main__"], list(sys.path)
    yield
    sys.modules["__main__"] = main
    sys.path[:] = path


@pytest.fixture(autouse=True)
def _closed_stores() -> Iterator[None]:
    """Closes the stores that a rehearsal leaves open in this process, before their files are deleted."""
    yield
    worker = sys.modules.get("keyscale.jobs.runtime.executor.worker")
    if worker is not None:
        worker.open_stores().close()
