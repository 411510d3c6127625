"""A job's record has its definition, with the names of secrets, in a form that later versions read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, JobId
from keyscale.state.documents.checked_document import DocumentCorruptError, FormatTooNewError, encode_document
from keyscale.state.documents.job_record import (
    FORMAT_VERSION,
    KIND,
    JobRecord,
    RecordedArtifact,
    RecordedOrigin,
    RecordedRestore,
    read_job_record,
    write_job_record,
)
from keyscale.state.layout import Layout, recorded_job
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.repository import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

GOLDEN_FILE = GOLDEN / "job-record-v1.json"
JOB = JobId("0123456789abcdef0123456789abcdef")
OTHER = "file:///store/other/savepoints/end/manifest.json"
RECORD = JobRecord(
    job_id=JOB,
    attempt=Attempt(7),
    continues=Attempt(5),
    name="flights",
    labels={"team": "travel"},
    max_parallelism=128,
    hash_id="spark",
    created_at_ms=1_795_000_000_000,
    revision=3,
    revised_at_ms=1_795_000_001_000,
    revised_by="admin",
    message="two more",
    specification={
        "artifact_id": "a" * 32,
        "libraries": ["package:kafka"],
        "parallelism": 2,
        "parameters": {"input": "/data", "password": {"secret": "ORDERS"}},
        "secrets": ["ORDERS"],
        "spark_conf": {"spark.executor.cores": "2"},
        "checkpoints": {"interval_ms": 5000},
        "restart": None,
        "batch_interval_ms": None,
    },
    artifacts=(RecordedArtifact("a" * 32, "flights", 4, "flights.py", "PYTHON", "b" * 64, 9, 1_794_000_000_000),),
    restore=RecordedRestore("again", "REWIND", OTHER, "CLAIM", allow_non_restored_state=True),
    origins=(RecordedOrigin(OTHER, "CLAIM"),),
    rewound_to=OTHER,
)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "store", get_bytes_max=64 << 20)


def test_todays_reader_reads_the_golden_file(store: LocalObjectStore) -> None:
    store.put(RECORD.path, GOLDEN_FILE.read_bytes())
    assert read_job_record(store, JOB, Attempt(7)) == RECORD


def test_a_record_is_written_as_in_the_golden_file(store: LocalObjectStore) -> None:
    write_job_record(store, RECORD)
    assert store.get(f"job-records/{JOB}/00000000000000000007.json") == GOLDEN_FILE.read_bytes()


def test_the_record_of_another_attempt_or_job_is_refused(store: LocalObjectStore) -> None:
    for place, changed in (
        (RECORD.path, msgspec.structs.replace(RECORD, job_id=JobId("other"))),
        (RECORD.path, msgspec.structs.replace(RECORD, attempt=Attempt(8))),
    ):
        store.put(place, encode_document(KIND, FORMAT_VERSION, changed))
        with pytest.raises(DocumentCorruptError, match="another job or attempt"):
            read_job_record(store, JOB, Attempt(7))


def test_a_newer_damaged_or_huge_record_is_refused(store: LocalObjectStore) -> None:
    store.put(RECORD.path, encode_document(KIND, FORMAT_VERSION + 1, RECORD))
    with pytest.raises(FormatTooNewError):
        read_job_record(store, JOB, Attempt(7))
    whole = encode_document(KIND, FORMAT_VERSION, RECORD)
    for data in (whole[:-9], whole.replace(b"flights", b"freight"), b"{}" * 200_001):
        store.put(RECORD.path, data)
        with pytest.raises(DocumentCorruptError):
            read_job_record(store, JOB, Attempt(7))


def test_paths_of_records_are_outside_of_the_jobs_own_prefix_and_lead_back() -> None:
    layout = Layout(JOB)
    assert not RECORD.path.startswith(layout.job)
    assert layout.recorded_attempt(RECORD.path) == 7
    assert layout.recorded_attempt(layout.recorded_artifact("b" * 64)) is None
    assert layout.recorded_attempt(f"{layout.records}7.json") is None
    assert recorded_job(RECORD.path) == recorded_job(layout.recorded_artifact("b" * 64)) == JOB
    assert recorded_job(f"{JOB}/log/1.json") is None
    assert recorded_job("job-records/alone") is None
