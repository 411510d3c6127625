"""The directory of temporary files is in memory if there is room, unless somebody has chosen one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.suite import scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.pop(scratch.ROOT_VARIABLE, None)
    monkeypatch.setattr(scratch, "FREE_BYTES_MIN", 0)
    yield
    os.environ.pop(scratch.ROOT_VARIABLE, None)
    if before is not None:
        os.environ[scratch.ROOT_VARIABLE] = before


def test_temporary_files_are_in_memory(tmp_path: Path) -> None:
    scratch.use_memory(tmp_path)
    assert os.environ[scratch.ROOT_VARIABLE] == str(tmp_path)


def test_a_chosen_directory_stays(tmp_path: Path) -> None:
    os.environ[scratch.ROOT_VARIABLE] = "chosen"
    scratch.use_memory(tmp_path)
    assert os.environ[scratch.ROOT_VARIABLE] == "chosen"


def test_without_room_in_memory_temporary_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch.use_memory(tmp_path / "absent")
    monkeypatch.setattr(scratch, "FREE_BYTES_MIN", 1 << 60)
    scratch.use_memory(tmp_path)
    assert scratch.ROOT_VARIABLE not in os.environ
