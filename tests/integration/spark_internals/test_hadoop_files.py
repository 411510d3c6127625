"""Relied on: py4j, and Hadoop's file system API behind it.

A failure here means that file and Kafka sinks cannot stage their output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.api.cli.process import free_port
from keyscale.jobs.errors import SinkPublishError, SinkUnavailableError
from keyscale.jobs.spark_internals.hadoop_files import HadoopDirectory, hadoop_settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> HadoopDirectory:
    return HadoopDirectory(spark, str(tmp_path / "a directory"))


def test_a_directory_is_made_listed_moved_and_deleted(directory: HadoopDirectory) -> None:
    assert not directory.exists()
    assert directory.names() == []
    directory.child("inner").make()
    assert directory.names() == ["inner"]
    moved = HadoopDirectory(directory.spark, f"{directory.path} moved")
    assert directory.move_to(moved)
    assert (directory.exists(), moved.names()) == (False, ["inner"])
    moved.delete()
    assert not moved.exists()


def test_a_small_file_is_written_and_read(directory: HadoopDirectory) -> None:
    assert directory.read_text("note") is None
    directory.write_text("note", "grüße")
    assert directory.read_text("note") == "grüße"


@pytest.mark.parametrize("is_local", [True, False])
def test_an_empty_file_is_made_with_its_directory(
    directory: HadoopDirectory, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    if not is_local:
        monkeypatch.setattr(HadoopDirectory, "local_path", lambda _: None)
    directory.child("inner").touch("1.2")
    directory.child("inner").touch("1.2")
    assert directory.child("inner").names() == ["1.2"]


def test_a_local_directory_has_a_path_that_python_can_open(directory: HadoopDirectory) -> None:
    assert directory.local_path() == directory.path


def test_a_failure_in_the_jvm_is_an_error_of_the_sink(spark: SparkSession) -> None:
    with pytest.raises(SinkPublishError, match="no-such-scheme"):
        HadoopDirectory(spark, "no-such-scheme://nowhere/path").exists()


def test_hadoop_s_settings_are_found_by_their_prefix(spark: SparkSession) -> None:
    assert hadoop_settings(spark, "fs.")["defaultFS"] == "file:///"


def test_a_file_system_that_does_not_answer_is_awaited_and_a_refusal_is_an_error_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = spark._jsc.hadoopConfiguration()
    settings.set("ipc.client.connect.max.retries", "0")
    settings.set("ipc.client.connect.max.retries.on.timeouts", "0")
    with pytest.raises(SinkUnavailableError, match="failed"):
        HadoopDirectory(spark, f"hdfs://127.0.0.1:{free_port()}/out").make()
    (tmp_path / "file").touch()
    for refused in (f"{tmp_path}/file/out", "unheard-of://nowhere/out"):
        with pytest.raises(SinkPublishError):
            HadoopDirectory(spark, refused).make()
