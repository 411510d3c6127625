from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.runtime.class_archive import ClassArchive
from jobs.runtime.spark_settings import JAVA_OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_driver_starts_without_an_archive_that_is_missing(tmp_path: Path) -> None:
    settings = ClassArchive.at(tmp_path).settings()
    assert settings == {"spark.driver.extraJavaOptions": JAVA_OPTIONS, "spark.executor.extraJavaOptions": JAVA_OPTIONS}


def test_an_archive_that_is_there_is_used_and_not_made_again(tmp_path: Path) -> None:
    archive = ClassArchive.at(tmp_path)
    archive.path.write_bytes(b"made")
    assert archive.build_if_missing(python="/nowhere/python")
    assert str(archive.path) in archive.settings()["spark.driver.extraJavaOptions"]


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ClassArchive.at(tmp_path).path
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert ClassArchive.at(tmp_path).path != before


def test_what_cannot_be_made_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = ClassArchive.at(tmp_path / "cache")
    assert not archive.build_if_missing(python="/nowhere/python")
    assert "no class archive" in caplog.text
    assert not list((tmp_path / "cache").iterdir())
