"""A checkpoint is shown by operator and subtask, and many of them by their distributions."""

from __future__ import annotations

import statistics
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Response
from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.errors import CheckpointNotFoundError
from keyscale.api.snapshots import checkpoint_routes as routes
from keyscale.api.snapshots import checkpoints as service
from keyscale.api.snapshots import savepoint_routes
from keyscale.api.snapshots.checkpoints import _operator, answer_of, quantile, spread, summarize
from keyscale.api.snapshots.schemas.checkpoint import LargeKeyGroup, RestoredAnswer
from keyscale.api.snapshots.schemas.snapshot_maintenance import VerifyRequest
from keyscale.db.models import Checkpoint, CheckpointSubtask, Job, Revision
from keyscale.db.repositories.attempts import Restores
from keyscale.db.repositories.checkpoints import Latest, Sizes
from keyscale.db.repositories.pages import Page, PageRequest
from keyscale.vocabulary import CheckpointStatus, SnapshotOwner


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0, 1))
def test_a_quantile_is_between_the_extremes_and_grows_with_its_fraction(values: list[int], fraction: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, fraction) <= ordered[-1]
    assert quantile(ordered, fraction) <= quantile(ordered, min(1.0, fraction + 0.1))


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_the_median_is_the_median(values: list[int]) -> None:
    assert summarize(values).p50 == pytest.approx(statistics.median(values))


def test_without_values_every_result_is_zero() -> None:
    assert set(summarize([]).model_dump().values()) == {0}
    assert spread([]).model_dump() == {"min": 0, "max": 0, "avg": 0}


def test_the_distribution_of_values_has_their_extremes_and_their_quantiles() -> None:
    found = summarize([4, 1, 3, 2])
    assert (found.min, found.max, found.avg, found.p50) == (1, 4, 2, 2.5)
    many = summarize(range(1, 1000))
    assert (many.p90, many.p95, many.p99, many.p999) == (900, 950, 990, 999)
    assert spread([5, 1, 3]).model_dump() == {"min": 1, "max": 5, "avg": 3}


COMPLETED, FAILED, IN_PROGRESS = CheckpointStatus.COMPLETED, CheckpointStatus.FAILED, CheckpointStatus.IN_PROGRESS


def part(number: int, status: CheckpointStatus = COMPLETED, **columns: Any) -> CheckpointSubtask:
    given = {
        "ack_timestamp": 100 + number,
        "end_to_end_duration": 1,
        "sync_duration": 2,
        "async_duration": 3,
        "start_delay": 4,
        "checkpointed_size": 5,
        "state_size": 10 * number,
        "distinct_size": None,
        "entries": 7,
        "key_group_start": number,
        "key_group_end": number + 1,
        "files": 8,
        "key_group_entries": [9],
        "largest_key_groups": [{"key_group": 2, "size_bytes": 6, "entries": None}],
        "key_group_bytes": [6],
    }
    return CheckpointSubtask(operator_uid="count", subtask=number, status=status, **{**given, **columns})


def test_each_value_of_a_subtask_is_shown_as_itself() -> None:
    [shown] = _operator("count", [part(3)], 90).subtasks
    assert (shown.index, shown.status, shown.ack_timestamp, shown.end_to_end_duration) == (3, COMPLETED, 103, 1)
    assert (shown.checkpoint.sync, shown.checkpoint.async_, shown.start_delay) == (2, 3, 4)
    assert (shown.checkpointed_size, shown.state_size, shown.entries, shown.files) == (5, 30, 7, 8)
    assert (shown.key_group_start, shown.key_group_end) == (3, 4)
    assert (shown.key_group_entries, shown.key_group_bytes) == ([9], [6])
    assert shown.largest_key_groups == [LargeKeyGroup(key_group=2, size_bytes=6, entries=None)]


def test_an_operator_is_the_sum_of_its_subtasks_and_its_summary_is_of_those_that_have_answered() -> None:
    unanswered = (
        "checkpointed_size",
        "entries",
        "end_to_end_duration",
        "sync_duration",
        "async_duration",
        "start_delay",
    )
    late = part(4, IN_PROGRESS, ack_timestamp=None, state_size=1000, **dict.fromkeys(unanswered, 0))
    shown = _operator("count", [part(1), part(3, distinct_size=2, sync_duration=8), late], 90)
    assert (shown.uid, shown.status, shown.latest_ack_timestamp) == ("count", IN_PROGRESS, 103)
    assert shown.end_to_end_duration == 13
    assert (shown.checkpointed_size, shown.state_size, shown.entries) == (10, 1012, 14)
    assert (shown.num_subtasks, shown.num_acknowledged_subtasks) == (3, 2)
    summary = shown.summary.model_dump(by_alias=True)
    durations = summary.pop("checkpoint_duration")
    assert {name: (each["min"], each["max"], each["avg"]) for name, each in {**summary, **durations}.items()} == {
        "checkpointed_size": (5, 5, 5),
        "state_size": (10, 30, 20),
        "entries": (7, 7, 7),
        "end_to_end_duration": (1, 1, 1),
        "sync": (2, 8, 5),
        "async": (3, 3, 3),
        "start_delay": (4, 4, 4),
    }
    assert _operator("count", [part(1, ack_timestamp=80)], 90).end_to_end_duration == 0
    assert _operator("count", [late], 90).end_to_end_duration == 0


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([COMPLETED, CheckpointStatus.SUBSUMED], COMPLETED),
        ([COMPLETED, IN_PROGRESS], IN_PROGRESS),
        ([COMPLETED, FAILED, IN_PROGRESS], FAILED),
    ],
)
def test_an_operator_is_complete_with_all_of_its_subtasks_and_fails_with_one(
    statuses: list[CheckpointStatus], expected: CheckpointStatus
) -> None:
    shown = _operator("count", [part(number, status) for number, status in enumerate(statuses)], 90)
    assert shown.status is expected


def test_a_checkpoint_that_is_no_longer_kept_is_shown_as_discarded() -> None:
    given: dict[str, Any] = dict.fromkeys((column.name for column in Checkpoint.__table__.c), 1)
    given |= {"external_path": "file:///c", "savepoint_id": "s", "failure_message": "no", "verification": None}
    given["owner"] = SnapshotOwner.USER
    for status in CheckpointStatus:
        for is_savepoint in (False, True):
            shown = answer_of(Checkpoint(**{**given, "status": status, "is_savepoint": is_savepoint}))
            assert shown.discarded is (status in {CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED})
            assert shown.checkpoint_type == ("SAVEPOINT" if is_savepoint else "CHECKPOINT")
            assert (shown.id, shown.processed_data, shown.external_path) == (1, 1, "file:///c")
            assert shown.owner is SnapshotOwner.USER


@pytest.mark.parametrize(
    ("source", "path", "expected"),
    [
        (Checkpoint(checkpoint_id=7, is_savepoint=True), "file:///x/checkpoints/7", (7, True)),
        (Checkpoint(checkpoint_id=7, is_savepoint=False), "file:///x/savepoints/7", (7, False)),
        (None, "file:///x/savepoints/7", (0, True)),
        (None, "file:///x/checkpoints/7", (0, False)),
    ],
)
def test_the_latest_restore_is_shown_also_when_another_job_has_taken_the_snapshot(
    monkeypatch: pytest.MonkeyPatch, source: Checkpoint | None, path: str, expected: tuple[int, bool]
) -> None:
    session: Any = None
    found = Restores(count=4, newest_at_ms=50, newest_from=path)
    monkeypatch.setattr(service.attempts, "restores", lambda _, job_id: {"job": found}.get(job_id))
    monkeypatch.setattr(service.checkpoints, "find_by_path", lambda *key: {("job", path): source}[key[1:]])
    count, shown = service._restores(session, "job")
    assert shown is not None
    assert (count, shown.restore_timestamp, shown.external_path) == (4, 50, path)
    assert (shown.id, shown.is_savepoint) == expected
    assert service._restores(session, "other") == (0, None)


def row(number: int, status: CheckpointStatus = COMPLETED, **columns: Any) -> Checkpoint:
    known: dict[str, Any] = dict.fromkeys((column.name for column in Checkpoint.__table__.c), 1)
    known |= {"external_path": f"file:///{number}", "savepoint_id": None, "failure_message": None, "verification": None}
    known |= {"owner": SnapshotOwner.PLATFORM, "is_savepoint": False, "checkpoint_id": number, "status": status}
    return Checkpoint(**{**known, **columns})


def test_the_statistics_count_each_status_and_sum_up_what_was_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counter({status: 10**at for at, status in enumerate(CheckpointStatus)})
    completed, savepoint, failed = row(9), row(8, is_savepoint=True, savepoint_id="s"), row(7, FAILED)
    asked: list[Any] = []

    def list_page(_: Any, job_id: str, page: Any, *, statuses: Any) -> Page[Checkpoint]:
        asked.append((job_id, page, statuses))
        return Page([failed, completed], (7,))

    def sizes(_: Any, *of: Any) -> Sizes:
        asked.append(of)
        return Sizes([1, 3], [20, 40], [300, 500], [4000, 6000])

    monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(service.checkpoints, "list_page", list_page)
    monkeypatch.setattr(service.checkpoints, "counts", lambda _, job_id: {"job": counts}[job_id])
    monkeypatch.setattr(service.checkpoints, "sizes", sizes)
    latest = Latest(completed, savepoint, failed)
    monkeypatch.setattr(service.checkpoints, "latest", lambda _, job_id: {"job": latest}[job_id])
    restored = RestoredAnswer(id=5, restore_timestamp=50, is_savepoint=False, external_path="file:///5")
    monkeypatch.setattr(service, "_restores", lambda _, job_id: {"job": (4, restored)}[job_id])
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    found = service.show_statistics(context, "flights", Listing(2, write_cursor((12,))), [FAILED])
    assert asked == [("job", PageRequest(2, (12,)), [FAILED]), ("job", service._DONE, service.SUMMARY_CHECKPOINTS_MAX)]
    done = {COMPLETED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED}
    assert found.counts.model_dump() == {
        "restored": 4,
        "total": counts.total(),
        "in_progress": counts[IN_PROGRESS],
        "completed": sum(counts[status] for status in done),
        "failed": counts[FAILED],
    }
    maxima = {name: each["max"] for name, each in found.summary.model_dump().items()}
    assert maxima == {
        "checkpointed_size": 3,
        "state_size": 40,
        "end_to_end_duration": 500,
        "processed_data": 6000,
        "persisted_data": 0,
    }
    shown = found.latest
    assert [each and each.id for each in (shown.completed, shown.savepoint, shown.failed)] == [9, 8, 7]
    assert (shown.restored, [each.id for each in found.history], found.next) == (restored, [7, 9], write_cursor((7,)))


def test_the_configuration_of_checkpoints_is_of_the_present_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "interval_ms": 11_000,
        "timeout_ms": 12_000,
        "min_pause_ms": 13,
        "tolerable_failed_checkpoints": 14,
        "retained_count": 15,
    }
    job, revision = Job(id="job", store_url="file:///store"), Revision(spec={"artifact_id": "a", "checkpoints": given})
    monkeypatch.setattr(service, "require_job", lambda _, name: {"flights": job}[name])
    monkeypatch.setattr(service.revisions, "current", lambda _, of: {"job": revision}[of.id])
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    assert service.show_config(context, "flights").model_dump() == {
        "mode": "exactly_once",
        "interval": 11_000,
        "timeout": 12_000,
        "min_pause": 13,
        "max_concurrent": 1,
        "externalization": {"enabled": True, "delete_on_cancellation": False},
        "state_backend": "rocksdb",
        "checkpoint_storage": "file:///store",
        "tolerable_failed_checkpoints": 14,
        "state_changelog_enabled": True,
        "retained_count": 15,
    }


def test_the_detail_of_a_checkpoint_has_the_subtasks_of_each_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [part(0), part(1), part(0)]
    parts[2].operator_uid = "map"
    monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(service.checkpoints, "find", lambda _, *key: {("job", 7): row(7)}.get(key))
    monkeypatch.setattr(service.checkpoints, "subtasks", lambda _, *key: {("job", 7): parts}[key])
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    found = service.show_detail(context, "flights", 7)
    assert [(each.uid, each.num_subtasks) for each in found.operators] == [("count", 2), ("map", 1)]
    assert found.operators[0].end_to_end_duration == 100, "since the checkpoint was triggered"
    assert found.model_dump(exclude={"operators"}) == answer_of(row(7)).model_dump()
    with pytest.raises(CheckpointNotFoundError):
        service.show_detail(context, "flights", 8)


def test_the_routes_of_checkpoints_ask_for_what_the_path_and_the_query_name(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    services: tuple[tuple[Any, str], ...] = (
        (routes.checkpoints, "show_statistics"),
        (routes.comparisons, "compare"),
        (routes.snapshot_deletions, "delete_checkpoint"),
        (routes.snapshot_deletions, "delete_savepoint"),
        (routes.verifications, "begin"),
        (savepoint_routes.savepoints, "list_of"),
    )
    for module, name in services:
        monkeypatch.setattr(module, name, lambda *given, name=name, **more: noted.append((name, *given[1:], more)))
    context, user, response, listing = cast("Any", "context"), cast("Any", "ann"), Response(), Listing(2)
    routes.show_checkpoints(context, user, "flights", listing, [FAILED])
    routes.compare_checkpoints(context, user, "flights", 3, 5, listing)
    for dry_run in (False, True):
        routes.delete_checkpoint(context, user, "flights", 3, response, dry_run)
        savepoint_routes.delete_savepoint(context, user, "flights", "s", response, dry_run)
        assert response.status_code == (200 if dry_run else 202)
    for request in (None, VerifyRequest(hashes=True)):
        routes.verify_checkpoint(context, user, "flights", 3, request)
    savepoint_routes.list_savepoints(context, user, "flights", listing, SnapshotOwner.USER)
    deletions = [
        [("delete_checkpoint", "ann", "flights", 3, dry_run), ("delete_savepoint", "ann", "flights", "s", dry_run)]
        for dry_run in ({"dry_run": False}, {"dry_run": True})
    ]
    assert noted == [
        ("show_statistics", "flights", listing, [FAILED], {}),
        ("compare", "ann", "flights", 3, 5, listing, {}),
        *deletions[0],
        *deletions[1],
        ("begin", "ann", "flights", 3, {"hashes": False}),
        ("begin", "ann", "flights", 3, {"hashes": True}),
        ("list_of", "flights", listing, SnapshotOwner.USER, {}),
    ]


def test_an_operator_takes_its_time_since_the_trigger_and_its_summary_has_no_failed_subtask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = row(7, trigger_timestamp=60, latest_ack_timestamp=500)
    parts = [part(0), part(1, FAILED, entries=70), part(2, IN_PROGRESS, entries=80)]
    monkeypatch.setattr(service, "require_job_id", lambda *_: "job")
    monkeypatch.setattr(service.checkpoints, "find", lambda *_: found)
    monkeypatch.setattr(service.checkpoints, "subtasks", lambda *_: parts)
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    [operator] = service.show_detail(context, "flights", 7).operators
    assert (operator.end_to_end_duration, operator.num_acknowledged_subtasks, operator.entries) == (42, 1, 157)
    assert operator.summary.entries.model_dump() == {"min": 7, "max": 7, "avg": 7}
