"""Imports test modules before pytest collects them, in another order in each worker of pytest-xdist.

pytest rewrites the assertions of a module when it first imports it, and keeps the result in a file. On a fresh clone
each worker would rewrite all modules, as all of them collect in one order.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence


def import_in_turns(arguments: Sequence[str], worker: int, workers: int) -> None:
    """Imports test modules: every `workers`th one from `worker` on.

    Args:
        arguments: The files and folders that pytest collects.
        worker: The number of this worker, from 0.
        workers: How many workers there are.
    """
    files = sorted({file for argument in arguments for file in _files_of(Path(argument.partition("::")[0]).resolve())})
    for file in files[worker::workers]:
        with suppress(Exception, pytest.skip.Exception):  # the collection shows it
            import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def _files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("test_*.py"))
