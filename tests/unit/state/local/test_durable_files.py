"""A file that is written durably is complete or absent after a power loss."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyscale.state.local.subtask_directory import write_durably
from tests.support.state.power_loss import SyncedDisk

if TYPE_CHECKING:
    from pathlib import Path


def test_the_content_is_on_disk_before_the_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SyncedDisk(monkeypatch)
    write_durably(tmp_path / "CLEAN", b"a marker")
    assert disk.contents[(tmp_path / "CLEAN").stat().st_ino] == b"a marker"


def test_a_file_that_cannot_be_synced_does_not_replace_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_durably(tmp_path / "CLEAN", b"before")

    def failing(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        write_durably(tmp_path / "CLEAN", b"after")
    assert (tmp_path / "CLEAN").read_bytes() == b"before"
