"""Only what nothing needs is deleted: of deleted jobs, of deleted snapshots, and of runs that have ended."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.maintenance import object_removal, run_removal, snapshot_removal
from keyscale.api.maintenance.object_removal import RETRY_MS, ROWS_AT_ONCE, SETTLED_MS, ObjectRemoval
from keyscale.api.maintenance.run_removal import RemovedRuns, RunRemoval
from keyscale.api.maintenance.snapshot_removal import RETRY_S, SnapshotRemoval
from keyscale.db.models import Checkpoint, DeletedJob
from keyscale.state.retention.deleted_job import DeletedObjects
from keyscale.state.retention.snapshot_deletion import SnapshotObjects

if TYPE_CHECKING:
    from collections.abc import Iterator

DELETED_MS = 1_000_000
PATHS = ("{}/savepoints/s/manifest.json", "{}/savepoints/t/manifest.json")


def deleted(
    objects: int = 0, size_bytes: int = 0, unfinished_writes: int = 0, savepoints: tuple[str, ...] = ()
) -> DeletedObjects:
    return DeletedObjects(objects, size_bytes, unfinished_writes, savepoints)


class Database:
    """The rows that a removal reads and changes, and the events that it records."""

    def __init__(self) -> None:
        self.job: DeletedJob | None = None
        self.rows_left = 0
        self.events: list[dict[str, Any]] = []

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        yield self

    begin = transaction

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        yield self

    def get(self, _: type, key: str) -> DeletedJob | None:
        return self.job if self.job is not None and self.job.job_id == key else None

    def delete(self, row: Any) -> None:
        assert row is self.job
        self.job = None

    def record(self, _: Any, **event: Any) -> None:
        self.events.append(event)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    database = Database()
    for module in (object_removal, snapshot_removal, run_removal):
        monkeypatch.setattr(module.events, "record", database.record)
    return database


class ObjectsPass:
    """The removal of a deleted job's objects, at a time of the test."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = DELETED_MS
        self.asked: list[Any] = []
        self.result: DeletedObjects | Exception = deleted(3, 2048)
        self.batches: list[int] = []
        self.database = database
        database.job = DeletedJob(
            job_id="job",
            name="flights",
            store_url="file:///store",
            keep_objects=False,
            deleted_at_ms=DELETED_MS,
            due_at_ms=DELETED_MS,
            claimed=[f"file:///store/{PATHS[0].format('other')}"],
            discarded=[f"file:///store/{PATHS[1].format('job')}"],
        )
        self.row = database.job
        monkeypatch.setattr(object_removal, "now_ms", lambda: self.now_ms)
        monkeypatch.setattr(object_removal, "open_to_read", lambda url: {"file:///store": "the store"}[url])
        monkeypatch.setattr(object_removal, "delete_job_objects", self._delete)
        monkeypatch.setattr(object_removal.deleted_jobs, "first_due", self._first_due)
        monkeypatch.setattr(object_removal.checkpoints, "delete_some", self._delete_rows)

    def _first_due(self, _: Any, at_ms: int) -> DeletedJob | None:
        job = self.database.job
        return job if job is not None and job.due_at_ms <= at_ms else None

    def _delete_rows(self, _: Any, job_id: str, limit: int) -> int:
        assert (job_id, limit) == ("job", ROWS_AT_ONCE)
        deleted = min(limit, self.database.rows_left)
        self.database.rows_left -= deleted
        return deleted

    def _delete(self, store: Any, job_id: str, **options: Any) -> DeletedObjects:
        assert (store, job_id, self.database.rows_left) == ("the store", "job", 0)
        self.asked.append(options)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def run(self, *, is_closing: bool = False) -> bool:
        removal = ObjectRemoval(cast("Any", self.database), cast("Any", None))
        if is_closing:
            removal._closing.set()
        return removal.work(cast("Any", self.database))


@pytest.fixture
def objects(database: Database, monkeypatch: pytest.MonkeyPatch) -> ObjectsPass:
    return ObjectsPass(database, monkeypatch)


def test_a_deleted_job_gets_a_first_pass_at_once_and_a_last_one_when_its_processes_have_ended(
    objects: ObjectsPass, database: Database
) -> None:
    database.rows_left = ROWS_AT_ONCE + 1
    named = {"claimed": [PATHS[0].format("other")], "discarded": [PATHS[1].format("job")]}
    assert objects.run()
    assert objects.asked == [{"is_last": False, "writes_before_ms": None, **named}]
    assert (objects.row.due_at_ms, database.job) == (DELETED_MS + SETTLED_MS, objects.row)
    objects.now_ms = DELETED_MS + SETTLED_MS - 1
    assert not objects.run()
    objects.now_ms += 1
    assert objects.run()
    assert objects.asked[1:] == [{"is_last": True, "writes_before_ms": DELETED_MS, **named}]
    assert database.job is None
    assert [(event["kind"], event["objects"], event["size_bytes"]) for event in database.events] == [
        ("JOB_OBJECTS_DELETED", 3, 2048)
    ] * 2


def test_a_pass_that_finds_nothing_reports_nothing(objects: ObjectsPass, database: Database) -> None:
    objects.result = deleted()
    assert objects.run()
    assert database.events == []
    objects.result = deleted(unfinished_writes=1, savepoints=(PATHS[0].format("job"),))
    objects.row.due_at_ms = DELETED_MS
    objects.run()
    assert database.events[0]["savepoints"] == [f"file:///store/{PATHS[0].format('job')}"]


def test_a_pass_is_told_as_a_whole_and_so_is_a_failure(objects: ObjectsPass, database: Database) -> None:
    objects.result = deleted(1, 2048, 3, (PATHS[0].format("job"), PATHS[1].format("job")))
    objects.run()
    kept = [f"file:///store/{path.format('job')}" for path in PATHS]
    of_event = {"job_id": "job", "at_ms": DELETED_MS, "store_url": "file:///store"}
    assert database.events.pop() == {
        **of_event,
        "kind": "JOB_OBJECTS_DELETED",
        "message": "deleted 1 object of flights, 2.0 KiB; kept 2 savepoints",
        "objects": 1,
        "size_bytes": 2048,
        "unfinished_writes": 3,
        "savepoints": kept,
    }
    objects.result, objects.row.due_at_ms = OSError("away"), DELETED_MS
    objects.run()
    assert database.events.pop() == {
        **of_event,
        "kind": "JOB_OBJECTS_KEPT",
        "message": "the objects of flights cannot be deleted; this is tried again",
        "failure_code": "OSError",
    }


def test_a_job_that_keeps_its_objects_loses_its_rows_alone(objects: ObjectsPass, database: Database) -> None:
    objects.row.keep_objects, database.rows_left = True, 2
    assert objects.run()
    assert (objects.asked, database.job, database.rows_left) == ([], None, 0)


def test_a_removal_that_ends_leaves_the_objects_to_the_next_leader(objects: ObjectsPass, database: Database) -> None:
    assert objects.run(is_closing=True)
    assert (objects.asked, database.job) == ([], objects.row)


def test_a_failing_pass_is_tried_again_and_reported_once(objects: ObjectsPass, database: Database) -> None:
    objects.result = OSError("away")
    for _ in range(2):
        assert objects.run()
        assert (objects.row.failure_code, objects.row.due_at_ms) == ("OSError", objects.now_ms + RETRY_MS)
        objects.now_ms += RETRY_MS
    assert [event["kind"] for event in database.events] == ["JOB_OBJECTS_KEPT"]
    objects.result = deleted()
    objects.run()
    assert (objects.row.failure_code, objects.row.due_at_ms) == (None, DELETED_MS + SETTLED_MS)


def test_a_deleted_snapshot_is_deleted_in_the_store_and_a_failing_one_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = {
        number: Checkpoint(
            job_id="job",
            checkpoint_id=number,
            is_savepoint=number == 5,
            external_path=f"file:///store/{PATHS[0].format(number)}",
        )
        for number in (5, 6)
    }
    clock = {"s": 0.0}
    asked: list[Any] = []

    def first(_: Any, later: list[tuple[str, int]]) -> Any:
        due = [row for row in snapshots.values() if row.objects_deleted_at_ms is None]
        return next(((row, "file:///store") for row in due if ("job", row.checkpoint_id) not in later), None)

    def delete(store: Any, job_id: str, path: str) -> SnapshotObjects:
        asked.append((store, job_id, path))
        if path.startswith("5/") and len(asked) == 1:
            raise OSError("away")
        return SnapshotObjects({"a": 1, "b": 2}, {"c": 4})

    monkeypatch.setattr(snapshot_removal.checkpoints, "first_discarded", first)
    monkeypatch.setattr(
        snapshot_removal.checkpoints, "find", lambda _, *key: snapshots.get(key[1]) if key[0] == "job" else None
    )
    monkeypatch.setattr(snapshot_removal, "delete_snapshot", delete)
    monkeypatch.setattr(snapshot_removal, "open_to_read", lambda url: url)
    monkeypatch.setattr(snapshot_removal, "now_ms", lambda: 70)
    monkeypatch.setattr(snapshot_removal.time, "monotonic", lambda: clock["s"])
    removal = SnapshotRemoval(cast("Any", database), cast("Any", None))

    def run() -> bool:
        return removal.work(cast("Any", database))

    assert [run(), run(), run()] == [True, True, False]
    assert [path for *_, path in asked] == [PATHS[0].format(5), PATHS[0].format(6)]
    assert [row.objects_deleted_at_ms for row in snapshots.values()] == [None, 70]
    clock["s"] = RETRY_S
    assert run()
    assert snapshots[5].objects_deleted_at_ms == 70
    assert [(event["kind"], event["checkpoint_id"], event["size_bytes"]) for event in database.events] == [
        ("CHECKPOINT_DELETED", 6, 3),
        ("SAVEPOINT_DELETED", 5, 3),
    ]
    assert database.events[1] == {
        "job_id": "job",
        "at_ms": 70,
        "kind": "SAVEPOINT_DELETED",
        "message": "deleted 2 objects of savepoint 5, 3 B",
        "checkpoint_id": 5,
        "objects": 2,
        "size_bytes": 3,
    }


class Runs:
    """The runs of one host, as its launcher has them, and the attempts that the database knows."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = {"known": [1, 2, 3], "gone": [1]}
        self.kept = {"known": {3}}
        self.supervised: set[tuple[str, int]] = set()
        self.of_others: set[tuple[str, int]] = set()
        self.failing: set[str] = set()
        self.unreadable: set[tuple[str, int]] = set()
        self.removed: list[Any] = []
        self.killed: list[Any] = []
        self.database = database
        monkeypatch.setattr(run_removal.jobs, "known", lambda _, jobs: set(jobs) & self.kept.keys())
        monkeypatch.setattr(run_removal.attempts, "numbers_of", lambda _, jobs: {job: self.kept[job] for job in jobs})
        self.launcher = SimpleNamespace(
            host="here",
            runs=lambda: {job: list(numbers) for job, numbers in self.here.items()},
            has_supervisor=self._has_supervisor,
            is_of_this_database=lambda *run: run not in self.of_others,
            kill=lambda *run: self.killed.append(run),
            remove_run=self._remove,
            forget=self._remove,
        )

    def _has_supervisor(self, *run: Any) -> bool:
        if run in self.unreadable:
            raise OSError("cannot be read")
        return run in self.supervised

    def _remove(self, *what: Any) -> int:
        if what[0] in self.failing:
            raise OSError("busy")
        self.removed.append(what)
        return 100

    def sweep(self) -> RemovedRuns:
        return RunRemoval(cast("Any", self.database), cast("Any", self.launcher)).run()


@pytest.fixture
def runs(database: Database, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(database, monkeypatch)


def test_runs_of_removed_attempts_and_deleted_jobs_are_deleted(runs: Runs, database: Database) -> None:
    assert runs.sweep() == RemovedRuns(1, 2, 300)
    assert runs.removed == [("known", 1), ("known", 2), ("gone",)]
    [event] = database.events
    assert (event["kind"], event["jobs"], event["attempts"], event["size_bytes"]) == ("RUNS_REMOVED", 1, 2, 300)
    assert runs.killed == []


def test_a_pass_without_anything_to_delete_reports_nothing(runs: Runs, database: Database) -> None:
    runs.here = {"known": [3]}
    assert runs.sweep() == RemovedRuns(0, 0, 0)
    assert (runs.removed, database.events) == ([], [])


def test_a_run_that_the_database_has_lost_is_killed_and_its_files_wait_for_its_end(
    runs: Runs, database: Database
) -> None:
    runs.supervised = {("known", 2), ("known", 3), ("gone", 1)}
    assert runs.sweep() == RemovedRuns(0, 1, 100)
    assert (runs.killed, runs.removed) == ([("known", 2), ("gone", 1)], [("known", 1)])
    lost = [(event["job_id"], event["job"], event["attempt"]) for event in database.events[:2]]
    assert lost == [("known", "known", 2), (None, "gone", 1)], "an event needs a job that exists"


def test_lost_and_removed_runs_are_told_with_their_host(
    runs: Runs, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_removal, "now_ms", lambda: 70)
    runs.here["known"] = [1, 2, 3, 4]
    runs.supervised = {("known", 2)}
    runs.sweep()
    assert database.events == [
        {
            "job_id": "known",
            "at_ms": 70,
            "kind": "LOST_RUN_KILLED",
            "message": "killed run 2 of job known, which the database does not know",
            "job": "known",
            "attempt": 2,
            "host": "here",
        },
        {
            "job_id": None,
            "at_ms": 70,
            "kind": "RUNS_REMOVED",
            "message": "deleted the local files of 1 deleted jobs and 2 removed attempts on here, 300 B",
            "jobs": 1,
            "attempts": 2,
            "size_bytes": 300,
            "host": "here",
        },
    ]


def test_a_removal_that_is_closed_leaves_the_files_of_further_jobs(runs: Runs, database: Database) -> None:
    removal = RunRemoval(cast("Any", database), cast("Any", runs.launcher))
    remove = runs.launcher.remove_run

    def then_closed(*run: Any) -> int:
        removal._closing.set()
        size_bytes: int = remove(*run)
        return size_bytes

    runs.launcher.remove_run = then_closed
    assert removal.run() == RemovedRuns(0, 2, 200)
    assert runs.removed == [("known", 1), ("known", 2)]


def test_the_files_of_a_deleted_job_wait_for_the_end_of_its_last_run(runs: Runs) -> None:
    runs.here = {"gone": [1, 2], "lost": []}
    runs.supervised = {("gone", 2)}
    assert runs.sweep() == RemovedRuns(1, 0, 100)
    assert runs.removed == [("lost",)], "a job without runs has files, too"
    runs.supervised.clear()
    runs.sweep()
    assert ("gone",) in runs.removed


def test_a_run_of_another_database_goes_on(runs: Runs) -> None:
    runs.supervised = runs.of_others = {("gone", 1)}
    runs.sweep()
    assert (runs.killed, runs.removed) == ([], [("known", 1), ("known", 2)])


def test_a_run_that_cannot_be_looked_at_counts_as_alive(runs: Runs) -> None:
    runs.unreadable = {("gone", 1), ("known", 1)}
    runs.sweep()
    assert runs.removed == [("known", 2)]


def test_files_that_cannot_be_deleted_keep_no_others(runs: Runs) -> None:
    runs.failing = {"known"}
    assert runs.sweep() == RemovedRuns(1, 0, 100)
