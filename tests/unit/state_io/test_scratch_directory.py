"""Reads and writes of state keep their temporary files in the directory that the caller names."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state_io import (
    ChangedOperator,
    KeyChange,
    NewOperator,
    NewState,
    StateReader,
    change_keys,
    for_each_key,
    transform,
    write,
)
from keyscale.state_io.key_state import KeyRequest, LatestKeys, read_history, read_key
from keyscale.state_io.snapshot_sql import SqlRequest, run_statement
from keyscale.state_io.state_partition import StatePartition
from keyscale.state_io.verified_state import verify_state
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATOR = NewOperator(
    "count",
    {"id": pa.int64()},
    [NewState(ValueStateDescriptor("count", pa.int64()), pa.table({"id": [1], "value": [7]}))],
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> StateJob:
    directory = tmp_path_factory.mktemp("job")
    job = StateJob(LocalObjectStore(directory / "store"), directory / "local")
    job.start(1)
    job.run_batch({1: 1})
    job.checkpoint("first")
    return job


def values(reader: StateReader) -> list[int]:
    with reader:
        found: list[int] = reader.table("count", "count").reader().read_all()["value"].to_pylist()
    return found


def read_of(job: StateJob) -> KeyRequest:
    return KeyRequest(job.store.url, "job", "count", "1")


def statement_of(job: StateJob) -> SqlRequest:
    return SqlRequest(job.store.url, "job", "job/savepoints/first/manifest.json", "select value from count.count")


def latest(job: StateJob, scratch: Path) -> Any:
    keys = LatestKeys(scratch)
    try:
        return keys.read(read_of(job))["states"][0]["rows"]
    finally:
        keys.close()


def place(job: StateJob, savepoint: str) -> str:
    return f"{job.store.url}/job/savepoints/{savepoint}"


READS: dict[str, tuple[Callable[[StateJob, Path], Any], Any]] = {
    "a snapshot": (lambda job, scratch: values(StateReader.open(place(job, "first"), scratch=scratch)), [1]),
    "a job": (lambda job, scratch: values(StateReader.of_job(job.store.url, "job", scratch=scratch)), [1]),
    "a part": (
        lambda job, scratch: [
            batch["value"].to_pylist()
            for batch in StatePartition(place(job, "first"), "count", "count").batches(scratch=scratch)
        ],
        [[1]],
    ),
    "a key": (lambda job, scratch: read_key(read_of(job), scratch)["states"][0]["rows"], [{"value": 1}]),
    "a history": (lambda job, scratch: len(read_history(read_of(job), scratch)["changes"]), 1),
    "latest keys": (latest, [{"value": 1}]),
    "a statement": (lambda job, scratch: run_statement(statement_of(job), scratch)["rows"], [[1]]),
    "a verification": (lambda job, scratch: verify_state(place(job, "first"), scratch=scratch).entries, 1),
    "keys": (
        lambda job, scratch: list(for_each_key(place(job, "first"), "count", lambda key, _: [key], scratch=scratch)),
        [1],
    ),
}
WRITES: dict[str, Callable[[StateJob, str, Path], Any]] = {
    "rows": lambda _, to, scratch: write(to, [OPERATOR], scratch=scratch),
    "keys": lambda job, to, scratch: for_each_key(
        place(job, "first"), "count", lambda *_: None, to=to, scratch=scratch
    ),
    "a change": lambda job, to, scratch: change_keys(
        place(job, "first"), to, [KeyChange("count", "count", "1", 5)], scratch=scratch
    ),
    "a copy": lambda job, to, scratch: transform(
        place(job, "first"), to, {"count": ChangedOperator(states={"count": "sum"})}, scratch=scratch
    ),
}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory beside which a read or a write cannot make a temporary file."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    real = tempfile.mkdtemp

    def made(*arguments: Any, **named: Any) -> str:
        found = real(*arguments, **named)
        assert found.startswith(str(directory)) or "keyscale-" not in Path(found).name, found
        return found

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    return directory


@pytest.mark.parametrize("read", READS)
def test_a_read_leaves_no_file_and_needs_the_named_directory_alone(job: StateJob, scratch: Path, read: str) -> None:
    reads, expected = READS[read]
    assert reads(job, scratch) == expected
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("written", WRITES)
def test_a_write_leaves_no_file_and_needs_the_named_directory_alone(job: StateJob, scratch: Path, written: str) -> None:
    to = place(job, f"written-{written.replace(' ', '-')}")
    WRITES[written](job, to, scratch)
    assert list(scratch.iterdir()) == []
