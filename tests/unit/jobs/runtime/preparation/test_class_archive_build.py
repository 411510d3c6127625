from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.runtime.preparation.class_archive_build import build_if_missing

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_archive_that_exists_is_not_built_again(tmp_path: Path) -> None:
    archive = ClassArchive.at(tmp_path)
    archive.path.write_bytes(b"built")
    assert build_if_missing(archive, python="/nowhere/python")
    assert archive.path.read_bytes() == b"built"


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = ClassArchive.at(tmp_path / "cache")
    assert not build_if_missing(archive, python="/nowhere/python")
    assert "no class archive" in caplog.text
    assert not list((tmp_path / "cache").iterdir())
