from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_interpreter_state() -> Iterator[None]:
    """Restores `__main__`, which a process that a later test spawns would run again, and the path."""
    main, path = sys.modules["__main__"], list(sys.path)
    yield
    sys.modules["__main__"] = main
    sys.path[:] = path


@pytest.fixture(autouse=True)
def _closed_stores(tmp_path: Path) -> Iterator[None]:  # noqa: ARG001 - set up before, and so deleted afterwards
    """Closes the stores that a rehearsal leaves open in this process, before their files are deleted.

    Without its files, a store takes a second to close.
    """
    yield
    worker = sys.modules.get("keyscale.jobs.runtime.executor.worker")
    if worker is not None:
        worker.open_stores().close()
