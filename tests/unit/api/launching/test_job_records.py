"""What the control plane writes to the store before it launches a driver."""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.api.errors import StoreUnavailableError
from keyscale.api.launching.job_records import keep_record
from keyscale.identifiers import Attempt
from keyscale.state.documents.job_record import RecordedArtifact, read_job_record
from keyscale.state.layout import Layout
from keyscale.state.objects.local_store import LocalObjectStore
from tests.unit.state.documents.test_job_record import JOB, RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.state.documents.job_record import JobRecord

PROGRAMS = {hashlib.sha256(each).hexdigest(): each for each in (b"first", b"second", b"third")}
FIRST, SECOND, THIRD = PROGRAMS
LAYOUT = Layout(JOB)


def record(attempt: int, sha256: str, *, continues: int = 0) -> JobRecord:
    program = RecordedArtifact("a" * 32, "job", 1, "job.py", "PYTHON", sha256, len(PROGRAMS[sha256]), 0)
    return msgspec.structs.replace(RECORD, attempt=Attempt(attempt), continues=Attempt(continues), artifacts=(program,))


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "store")


def read_program(sha256: str) -> Iterator[bytes]:
    yield from (PROGRAMS[sha256][:2], PROGRAMS[sha256][2:])


def keep(store: LocalObjectStore, kept: JobRecord) -> None:
    keep_record(store.url, kept, read_program)


def paths(store: LocalObjectStore) -> set[str]:
    return {info.path for info in store.list("")}


def test_a_record_and_the_bytes_of_its_artifacts_are_stored(store: LocalObjectStore) -> None:
    keep(store, record(1, FIRST))
    assert read_job_record(store, JOB, Attempt(1)) == record(1, FIRST)
    assert store.get(LAYOUT.recorded_artifact(FIRST)) == b"first"


def test_only_the_control_plane_may_enter_the_records_of_a_local_store(store: LocalObjectStore, tmp_path: Path) -> None:
    keep(store, record(1, FIRST))
    assert stat.S_IMODE((tmp_path / "store" / "job-records").stat().st_mode) == 0o700


def test_an_artifact_is_uploaded_once_and_again_if_its_object_is_cut(store: LocalObjectStore) -> None:
    asked: list[str] = []

    def read(sha256: str) -> Iterator[bytes]:
        asked.append(sha256)
        return read_program(sha256)

    keep_record(store.url, record(1, FIRST), read)
    keep_record(store.url, record(2, FIRST), read)
    assert asked == [FIRST]
    store.put(LAYOUT.recorded_artifact(FIRST), b"fi")
    keep_record(store.url, record(3, FIRST), read)
    assert store.get(LAYOUT.recorded_artifact(FIRST)) == b"first"


def test_records_before_the_continued_attempt_go_with_the_artifacts_that_no_record_names(
    store: LocalObjectStore,
) -> None:
    keep(store, record(1, FIRST))
    keep(store, record(2, SECOND, continues=1))
    keep(store, record(3, THIRD, continues=2))
    assert paths(store) == {
        LAYOUT.record(Attempt(2)),
        LAYOUT.record(Attempt(3)),
        LAYOUT.recorded_artifact(SECOND),
        LAYOUT.recorded_artifact(THIRD),
    }


def test_an_older_leader_that_writes_last_deletes_no_newer_record(store: LocalObjectStore) -> None:
    keep(store, record(3, SECOND))
    keep(store, record(2, FIRST))
    assert read_job_record(store, JOB, Attempt(3)) == record(3, SECOND)
    assert store.get(LAYOUT.recorded_artifact(SECOND)) == b"second"


def test_artifacts_stay_while_a_record_cannot_be_read(store: LocalObjectStore) -> None:
    keep(store, record(1, FIRST))
    store.put(LAYOUT.record(Attempt(1)), b"damaged")
    keep(store, record(2, SECOND))
    assert LAYOUT.recorded_artifact(FIRST) in paths(store)


def test_a_store_that_does_not_answer_is_said(store: LocalObjectStore, tmp_path: Path) -> None:
    keep(store, record(1, FIRST))
    program = tmp_path / "store" / LAYOUT.recorded_artifact(SECOND)
    program.mkdir()
    with pytest.raises(StoreUnavailableError):
        keep(store, record(2, SECOND))
    assert LAYOUT.record(Attempt(2)) not in paths(store), "a record never names missing bytes"
