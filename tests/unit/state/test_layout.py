"""A path of the job's objects says by whom it was written; other paths say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.layout import (
    ChangelogOrigin,
    InvalidNameError,
    Layout,
    LocationError,
    control_plane,
    job_of_manifest,
    path_segment,
    recorded_job,
    savepoint_of,
    split_location,
)

LAYOUT = Layout(JobId("job"))
CHANGELOG = LAYOUT.changelog(
    OperatorUid("count"), batch_id=BatchId(7), subtask=SubtaskIndex(3), attempt=Attempt(2), unique="a-b"
)
NAME = CHANGELOG.rpartition("/")[2]


def test_a_changelogs_path_says_its_batch_and_attempt() -> None:
    assert LAYOUT.changelog_origin(CHANGELOG) == ChangelogOrigin(BatchId(7), Attempt(2))


@pytest.mark.parametrize(
    "path",
    [
        CHANGELOG.replace("job/", "other/"),
        f"{LAYOUT.log}{NAME}",
        CHANGELOG.removesuffix("-a-b"),
        CHANGELOG.replace("-3-", "-three-"),
    ],
)
def test_another_path_has_no_batch_and_attempt(path: str) -> None:
    assert LAYOUT.changelog_origin(path) is None


@pytest.mark.parametrize("name", ["1.json", f"{7:020}.txt", "manifest.json", f"{7:019}x.json"])
def test_only_a_log_entrys_path_has_a_position(name: str) -> None:
    assert LAYOUT.log_position(LAYOUT.log_entry(7)) == 7
    assert LAYOUT.log_position(f"{LAYOUT.log}{name}") is None


def test_every_object_of_a_job_has_its_own_path() -> None:
    """Stored objects are found by these paths: a changed one loses them."""
    layout, uid, subtask, attempt, checkpoint = (
        Layout(JobId("a job.1")),
        OperatorUid("count/all"),
        SubtaskIndex(3),
        Attempt(2),
        CheckpointId(7),
    )
    of_subtask: dict[str, Any] = {"uid": uid, "subtask": subtask, "unique": "u.1"}
    exclusive = {**of_subtask, "shard": 4, "name": "CURRENT"}
    assert {
        "job": layout.job,
        "records": layout.records,
        "record": layout.record(attempt),
        "artifact": layout.recorded_artifact("sha"),
        "log entry": layout.log_entry(12),
        "changelog": layout.changelog(uid, batch_id=BatchId(9), subtask=subtask, attempt=attempt, unique="u.1"),
        "shared": layout.shared_file("sha", attempt, checkpoint),
        "checkpoint": layout.manifest(checkpoint),
        "savepoint": layout.manifest(checkpoint, "s 1"),
        "changes": layout.changes("s 1"),
        "positions": layout.positions(checkpoint, None, "u.1"),
        "positions of a savepoint": layout.positions(checkpoint, "s 1", "u.1"),
        "exclusive": layout.exclusive_file(checkpoint_id=checkpoint, savepoint_id=None, **exclusive),
        "exclusive of a savepoint": layout.exclusive_file(checkpoint_id=checkpoint, savepoint_id="s 1", **exclusive),
        "operator state": layout.operator_state_file(checkpoint_id=checkpoint, savepoint_id=None, **of_subtask),
        "own copy": layout.savepoint_file("s 1", "sha", attempt, checkpoint),
        "control plane": control_plane("replica.1"),
    } == {
        "job": "a%20job%2E1/",
        "records": "job-records/a%20job%2E1/",
        "record": "job-records/a%20job%2E1/00000000000000000002.json",
        "artifact": "job-records/a%20job%2E1/artifacts/sha",
        "log entry": "a%20job%2E1/log/00000000000000000012.json",
        "changelog": "a%20job%2E1/changelog/count%2Fall/00000000000000000009-3-2-u%2E1",
        "shared": "a%20job%2E1/shared/sha-2-7",
        "checkpoint": "a%20job%2E1/chk-7/manifest.json",
        "savepoint": "a%20job%2E1/savepoints/s%201/manifest.json",
        "changes": "a%20job%2E1/savepoints/s%201/changes.json",
        "positions": "a%20job%2E1/chk-7/positions-u%2E1.json",
        "positions of a savepoint": "a%20job%2E1/savepoints/s%201/positions-u%2E1.json",
        "exclusive": "a%20job%2E1/chk-7/count%2Fall/3-u%2E1/4/CURRENT",
        "exclusive of a savepoint": "a%20job%2E1/savepoints/s%201/count%2Fall/3-u%2E1/4/CURRENT",
        "operator state": "a%20job%2E1/chk-7/count%2Fall/3-u%2E1/operator-state",
        "own copy": "a%20job%2E1/savepoints/s%201/files/sha-2-7",
        "control plane": "control-planes/replica%2E1.json",
    }


def test_paths_and_locations_lead_back_to_their_job_and_savepoint() -> None:
    layout = Layout(JobId("a job.1"))
    savepoint, checkpoint = layout.manifest(CheckpointId(7), "s 1"), layout.manifest(CheckpointId(7))
    assert (job_of_manifest(savepoint), job_of_manifest(checkpoint)) == ("a job.1", "a job.1")
    assert savepoint_of(f"s3://bucket/root/{savepoint}") == ("s3://bucket/root", "a job.1", "s 1")
    assert savepoint_of(f"s3://bucket/{savepoint.removesuffix('/manifest.json')}/") == ("s3://bucket", "a job.1", "s 1")
    assert split_location(f"file:///root/{checkpoint}") == ("file:///root", checkpoint)
    assert layout.recorded_attempt(layout.record(Attempt(12))) == 12
    assert recorded_job(layout.recorded_artifact("sha")) == "a job.1"
    with pytest.raises(LocationError, match="a savepoint's location"):
        savepoint_of(f"s3://bucket/{checkpoint}")


@pytest.mark.parametrize(
    "path",
    [
        "job/chk-07/manifest.json",
        "job/chk-7/manifest.jso",
        "a/job/chk-7/manifest.json",
        "a job/chk-7/manifest.json",
        "job/savepoints/a.b/manifest.json",
        "job/savepoints/a/b/manifest.json",
        "job/chk-7/x/manifest.json",
    ],
)
def test_no_other_path_holds_a_jobs_manifest(path: str) -> None:
    with pytest.raises(LocationError):
        job_of_manifest(path)


def test_only_a_records_own_path_has_its_attempt_and_job() -> None:
    layout = Layout(JobId("job"))
    for path in (layout.record(Attempt(2)).replace("000", "0", 1), f"{layout.records}x.json", "job/log/2.json"):
        assert layout.recorded_attempt(path) is None
    assert layout.recorded_attempt(Layout(JobId("other")).record(Attempt(2))) is None
    assert [recorded_job(path) for path in ("job/log/2", "job-records/", "job-records/a b/1.json")] == [None] * 3


def test_a_name_of_a_path_has_1_to_200_bytes_in_its_quoted_form() -> None:
    assert path_segment("x" * 200) == "x" * 200
    assert path_segment("..") == "%2E%2E"
    for name in ("", "x" * 201, " " * 67):
        with pytest.raises(InvalidNameError):
            path_segment(name)


def test_a_location_that_is_no_text_is_refused_with_its_type() -> None:
    with pytest.raises(LocationError, match="not a int"):
        split_location(7)  # type: ignore[arg-type]
