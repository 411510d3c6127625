"""A missing right is named with the user, the directory and its owner."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it publishes no types

from keyscale import FileSink
from keyscale.file_rights import missing_right, user_name
from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.errors import SinkForbiddenError, SinkUnavailableError
from keyscale.jobs.sinks import files
from keyscale.jobs.sinks.parquet_output import ParquetForm, ParquetOutput
from keyscale.jobs.sinks.sink import SinkContext
from keyscale.jobs.spark_internals import hadoop_files
from keyscale.state.errors import DiskForbiddenError
from keyscale.state.local.subtask_directory import local_failures
from keyscale.state.objects.errors import StoreForbiddenError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.object_store import probe
from tests.support.sinks.driver import Host
from tests.support.sinks.file_system import ModelDirectory, ModelSession

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534
SCHEMA = pa.schema([("id", pa.int64())])
CONTEXT = SinkContext("job", "out", 0, 2, "unique")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that every user can read, and only its owner, root, can write to."""
    path = Path(tempfile.mkdtemp(prefix="keyscale-rights-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Becomes another user inside a test.

    A fixture would be too early: coverage writes its file between the fixtures and the test, as root.
    """
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_that_may_be_written_or_made_lacks_no_right(tmp_path: Path) -> None:
    assert missing_right(tmp_path) is None
    assert missing_right(tmp_path / "a" / "b") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
class TestAnotherUser:
    def test_the_nearest_directory_is_named_with_its_owner(self, directory: Path) -> None:
        said = f"user {user_name(NOBODY)} may not write to {directory}, which belongs to root (mode 755)"
        with as_nobody():
            assert missing_right(directory) == missing_right(directory / "a" / "b") == said

    def test_the_store_and_local_directories_name_the_user_and_do_not_ask_for_a_retry(self, directory: Path) -> None:
        store = LocalObjectStore(directory / "store")
        with as_nobody(), pytest.raises(StoreForbiddenError, match=f"user {user_name(NOBODY)} may not use .*probe"):
            probe(store)
        with (
            as_nobody(),
            pytest.raises(DiskForbiddenError, match=f"user .* may not write to {directory}, which belongs to root"),
            local_failures(directory),
        ):
            (directory / "subtask").mkdir()

    def test_a_sink_of_files_is_refused_before_its_first_row(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "SparkSession", SimpleNamespace(active=lambda: ModelSession(Host())))
        monkeypatch.setattr(files, "HadoopDirectory", ModelDirectory)
        said = f"may not write to {directory}, which belongs to root"
        with as_nobody(), pytest.raises(SinkForbiddenError, match=said):
            FileSink(str(directory / "out")).check(SCHEMA, CONTEXT)

    def test_a_subtask_that_writes_files_names_the_directory(self, directory: Path) -> None:
        form = ParquetForm.of(SCHEMA, {}, {}, "4.0.0")
        assert form is not None
        rows = iter([pa.RecordBatch.from_pylist([{"id": 1}], SCHEMA)])
        with as_nobody(), pytest.raises(SinkForbiddenError, match=f"may not write to {directory}"):
            ParquetOutput("token", str(directory), form).write(SubtaskIndex(0), rows)


class _Failing:
    """A file system of Hadoop whose every call fails with an exception of a class."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def fail(self, *_: Any) -> None:
        kinds = list(self._kinds)

        def kind_at(place: int) -> Any:
            if place == len(kinds):
                return None
            return SimpleNamespace(getName=lambda: kinds[place], getSuperclass=lambda: kind_at(place + 1))

        failure = SimpleNamespace(
            getClass=lambda: kind_at(0), toString=lambda: f"{kinds[0]}: /out", _target_id="o1", _gateway_client=None
        )
        raise Py4JJavaError("failed", cast("Any", failure))


@pytest.mark.parametrize(
    ("kind", "is_forbidden"),
    [
        ("org.apache.hadoop.security.AccessControlException", True),
        ("java.nio.file.AccessDeniedException", True),
        ("java.net.ConnectException", False),
    ],
)
def test_a_right_that_another_file_system_misses_is_told_from_an_outage(
    kind: str, is_forbidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = _Failing(kind, "java.io.IOException", "java.lang.Exception")
    path = SimpleNamespace(getFileSystem=failing.fail)
    monkeypatch.setattr(hadoop_files.HadoopDirectory, "_hadoop_path", lambda _: path)
    session = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
    expected = SinkForbiddenError if is_forbidden else SinkUnavailableError
    with pytest.raises(expected):
        hadoop_files.HadoopDirectory(cast("Any", session), "hdfs://host/out").exists()
