from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.spark_settings import JAVA_OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_driver_starts_without_an_archive_that_is_missing(tmp_path: Path) -> None:
    settings = ClassArchive.at(tmp_path).settings()
    assert settings == {"spark.driver.extraJavaOptions": JAVA_OPTIONS, "spark.executor.extraJavaOptions": JAVA_OPTIONS}


def test_an_archive_that_exists_is_used(tmp_path: Path) -> None:
    archive = ClassArchive.at(tmp_path)
    archive.path.write_bytes(b"built")
    assert str(archive.path) in archive.settings()["spark.driver.extraJavaOptions"]


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ClassArchive.at(tmp_path).path
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert ClassArchive.at(tmp_path).path != before
