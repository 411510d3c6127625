"""Checkpoints and savepoints of a job: the base of each one, and the state that a moved subtask is restored from."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.clock import now_ms
from keyscale.identifiers import CheckpointId, OperatorUid
from keyscale.jobs.functions.process_function import KeyedProcessFunction
from keyscale.jobs.runtime.executor import subtask_jobs
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import JobTime
from keyscale.state.documents.manifest import read_manifest
from keyscale.state.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor
from keyscale.state.layout import split_location
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.vocabulary import CheckpointStatus
from tests.support.rehearsal.keyed_rehearsal import OPERATOR, SINK, keyed_rehearsal, lose_the_host

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.protocol.messages import CheckpointReport
    from keyscale.state.documents.manifest import Manifest
    from tests.support.rehearsal.rehearsal import Rehearsal

OUTPUT = pa.schema([("key", pa.string()), ("of_key", pa.int64()), ("of_subtask", pa.int64())])
BATCHES = [[("a", number), ("b", number)] for number in range(6)]


class Counts(KeyedProcessFunction):
    """Counts the records of each key, and in operator state those of its subtask."""

    def open(self, context):
        self.of_key = context.get_state(ValueStateDescriptor("of_key", pa.int64()))
        self.of_subtask = context.get_operator_list_state(ListStateDescriptor("of_subtask", pa.int64()))

    def process_element(self, row, context):  # noqa: ARG002 - the signature of the base class
        self.of_key.update((self.of_key.value() or 0) + 1)
        self.of_subtask.add(row.at)
        yield row.key, self.of_key.value(), len(self.of_subtask.get())


@pytest.fixture
def job(tmp_path: Path) -> Rehearsal:
    job = keyed_rehearsal(tmp_path, Counts(), OUTPUT, BATCHES)
    job.start(1)
    return job


def counted(job: Rehearsal) -> list[tuple[str, int, int]]:
    return [(row["key"], row["of_key"], row["of_subtask"]) for row in job.output(SINK)]


def expected(batches: int) -> list[tuple[str, int, int]]:
    return [("ab"[each % 2], each // 2 + 1, each + 1) for each in range(2 * batches)]


def store_of(job: Rehearsal) -> LocalObjectStore:
    return LocalObjectStore(job.directory / "store")


def manifest_at(job: Rehearsal, location: str) -> Manifest:
    return read_manifest(store_of(job), split_location(location)[1])


def files_of(manifest: Manifest) -> set[str]:
    return {
        file.path
        for operator in manifest.operators
        for subtask in operator.subtasks
        for shard in subtask.shards
        for file in shard.files
    }


def shared_by(job: Rehearsal, location: str) -> set[str]:
    """The files of a checkpoint that later ones may share."""
    return {path for path in files_of(manifest_at(job, location)) if "/shared/" in path}


def delete_savepoint(job: Rehearsal, location: str) -> None:
    folder = split_location(location)[1].rpartition("/")[0]
    store = store_of(job)
    found = [info.path for info in store.list(f"{folder}/")]
    assert found
    store.delete(found)


def test_state_changed_after_the_checkpoint_is_there_when_a_subtask_moves(job: Rehearsal) -> None:
    job.run_batches(1)
    job.checkpoint()
    job.run_batches(2)
    lose_the_host(job)
    job.run_batches(1)
    assert counted(job) == expected(4)


def test_a_host_is_lost_beside_a_process_that_still_writes_there(
    job: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, beside = os.unlink, job.directory / "local" / "beside"

    def unlink_and_write(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        with suppress(FileNotFoundError):
            beside.touch()

    job.run_batches(1)
    with monkeypatch.context() as patch:
        patch.setattr("os.unlink", unlink_and_write)
        lose_the_host(job)
    assert not beside.parent.exists()
    job.run_batches(1)
    assert counted(job) == expected(2)


def test_a_subtask_that_moves_is_not_restored_from_a_savepoint_which_its_owner_may_delete(job: Rehearsal) -> None:
    job.run_batches(1)
    job.checkpoint()
    job.run_batches(1)
    savepoint = job.checkpoint("mine")
    job.run_batches(1)
    delete_savepoint(job, savepoint)
    lose_the_host(job)
    job.run_batches(1)
    assert counted(job) == expected(4)


@pytest.mark.parametrize("claims", [False, True])
def test_a_checkpoint_after_a_savepoint_shares_files_with_the_checkpoint_before_it_and_none_with_the_savepoint(
    job: Rehearsal, claims: bool
) -> None:
    job._checkpoints.claims = claims
    job.run_batches(1)
    first = shared_by(job, job.checkpoint())
    savepoint = job.checkpoint("mine")
    job.run_batches(1)
    checkpoint = job.checkpoint()
    assert first
    assert first <= shared_by(job, checkpoint)
    assert not files_of(manifest_at(job, checkpoint)) & files_of(manifest_at(job, savepoint))
    delete_savepoint(job, savepoint)
    job.start(2, checkpoint, local="another host")
    job.run_batches(len(BATCHES) - 2)
    assert sorted(row[:2] for row in counted(job)) == sorted(row[:2] for row in expected(len(BATCHES)))


def test_a_checkpoint_uploads_nothing_of_what_the_one_before_it_has(job: Rehearsal) -> None:
    job.run_batches(1)
    first, second = (shared_by(job, job.checkpoint()) for _ in range(2))
    assert first
    assert first <= second


def test_a_savepoint_has_a_number_of_its_own_and_subsumes_no_checkpoint(job: Rehearsal) -> None:
    for _ in range(3):
        job.run_batches(1)
        job.checkpoint()
    assert job._checkpoints.retained_ids == [1, 2, 3]
    savepoint = job.checkpoint("mine")
    assert job._checkpoints.retained_ids == [1, 2, 3]
    job.run_batches(1)
    job.checkpoint()
    assert (manifest_at(job, savepoint).checkpoint_id, job._checkpoints.retained_ids) == (4, [2, 3, 5])


def test_a_savepoint_that_is_asked_for_again_is_the_same_one(job: Rehearsal) -> None:
    job.run_batches(1)
    savepoint = job.checkpoint("mine")
    job.run_batches(1)
    found = job._checkpoints.find_savepoint("mine")
    assert found is not None
    assert (found.location, found.manifest.batch_id) == (savepoint, 0)
    assert job._checkpoints.find_savepoint("yours") is None


def test_a_checkpoint_holds_the_number_of_the_last_batch_and_its_place_in_the_log(job: Rehearsal) -> None:
    job.run_batches(2)
    manifest = manifest_at(job, job.checkpoint())
    assert (manifest.batch_id, manifest.log_position) == (1, 5)
    assert manifest.positions is not None
    assert set(manifest.sinks) == {SINK}


def test_the_counters_and_the_time_of_a_job_add_up_over_checkpoints_and_restarts(job: Rehearsal) -> None:
    job.run_batches(2)
    manifest = manifest_at(job, job.checkpoint())
    assert isinstance(manifest.counters, JobCounters)
    assert manifest.counters.input_records == 4
    assert isinstance(manifest.time, JobTime)
    assert manifest.time.event_times[OperatorUid(OPERATOR)].latest_ms == 1
    job.run_batches(1)
    job.start(1)
    job.run_batches(1)
    assert job._loop._committed.counters.input_records == 8
    assert job._loop._committed.time.event_times[OperatorUid(OPERATOR)].latest_ms == 3


def test_all_of_a_restart_a_moved_subtask_and_a_rescale_add_up(job: Rehearsal) -> None:
    job.run_batches(1)
    job.checkpoint()
    job.run_batches(1)
    job.start(1)
    job.run_batches(1)
    lose_the_host(job)
    job.run_batches(1)
    assert counted(job) == expected(4)
    savepoint = job.checkpoint("mine", batches_wait=True)
    job.start(3, savepoint)
    job.drain()
    assert sorted(row[:2] for row in counted(job)) == sorted(row[:2] for row in expected(len(BATCHES)))


def test_a_checkpoint_is_reported_when_it_begins_and_when_it_is_complete(
    job: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    later_ms = count(now_ms(), 7)  # each subtask acknowledges at a time of its own
    monkeypatch.setattr(subtask_jobs, "now_ms", lambda: next(later_ms))
    job.start(2)
    reports: list[CheckpointReport] = []
    checkpoints = job._checkpoints
    checkpoints.report = reports.append
    checkpoints.retained_count = 1
    read = [0]
    checkpoints.input_records = lambda: read[0]
    for read[0] in (10, 25):
        job.run_batches(1)
        job.checkpoint()
    read[0] = 31
    location = job.checkpoint("mine")
    begun, completed, *_ = reports
    assert (begun.status, begun.checkpoint_id, begun.is_savepoint) == (CheckpointStatus.IN_PROGRESS, 1, False)
    assert [report.status for report in reports] == [CheckpointStatus.IN_PROGRESS, CheckpointStatus.COMPLETED] * 3
    assert [report.processed_records for report in reports[1::2]] == [10, 15, 6], "since the checkpoint before"
    assert [report.subsumed_checkpoint_ids for report in reports[1::2]] == [[], [1], []]
    assert [report.batch_id for report in reports[1::2]] == [0, 1, 1]
    assert completed.trigger_timestamp == begun.trigger_timestamp
    acknowledged_ms = [part.ack_timestamp or 0 for part in completed.subtasks]
    assert completed.latest_ack_timestamp == max(acknowledged_ms) > min(acknowledged_ms)
    assert completed.checkpointed_size == sum(part.checkpointed_size for part in completed.subtasks) > 0
    second = reports[3]
    assert second.external_path is not None
    assert second.state_size == manifest_at(job, second.external_path).state_size_bytes > second.checkpointed_size
    savepoint = reports[-1]
    assert (savepoint.is_savepoint, savepoint.savepoint_id, savepoint.external_path) == (True, "mine", location)


def test_a_checkpoint_that_fails_is_reported_with_its_reason_and_its_number_is_not_used_again(job: Rehearsal) -> None:
    reports: list[CheckpointReport] = []
    checkpoints = job._checkpoints
    checkpoints.report = reports.append
    job.run_batches(1)
    base = checkpoints.base

    def fails() -> int:
        raise StoreUnavailableError("away")

    checkpoints.input_records = fails
    with pytest.raises(StoreUnavailableError):
        job.checkpoint()
    checkpoints.input_records = lambda: 0
    job.checkpoint()
    begun, failed, _, completed = reports
    assert [begun.checkpoint_id, failed.checkpoint_id] == [1, 1]
    assert completed.checkpoint_id > 1
    assert failed.status is CheckpointStatus.FAILED
    assert failed.failure_message == "STATE_STORE_UNAVAILABLE: away"
    assert base is None
    assert checkpoints.base is not None


def test_a_number_whose_manifest_an_overtaken_driver_has_published_is_skipped(job: Rehearsal) -> None:
    job.run_batches(1)
    path = job._checkpoints.context.layout.manifest(CheckpointId(1))
    store_of(job).put(path, b"late")
    job.checkpoint()
    assert store_of(job).get(path) == b"late"
    assert job._checkpoints.retained_ids == [2]
