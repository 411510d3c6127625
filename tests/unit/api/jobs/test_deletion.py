"""A deleted job is locked, stored as deleted, and only then ended on its host."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import ApprovalRequiredError
from keyscale.api.jobs import jobs
from keyscale.db.models import Attempt, Checkpoint, DeletedJob, Job
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import SETTLED, CheckpointStatus, ClaimMode, JobStatus, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

ADMIN = Principal("admin", "root", Role.ADMIN)


class World:
    """A job, and what becomes of it, in order."""

    def __init__(self) -> None:
        self.job = Job(id="job", name="flights", store_url="file:///store", status=JobStatus.STOPPED)
        self.savepoint = Checkpoint(external_path="file:///of-a-change", status=CheckpointStatus.COMPLETED)
        self.steps: list[Any] = []
        session = SimpleNamespace(delete=lambda _: self.steps.append("row deleted"), flush=lambda: None, add=self._add)
        self.context: Any = SimpleNamespace(
            sessions=SimpleNamespace(begin=lambda: self._begin(session)),
            launcher=SimpleNamespace(
                kill=lambda job_id, run: self.steps.append(("killed", job_id, run)),
                forget=lambda job_id: self.steps.append(("forgotten", job_id)),
            ),
        )

    @contextmanager
    def _begin(self, session: Any) -> Iterator[Any]:
        yield session
        self.steps.append("committed")

    def _add(self, row: DeletedJob) -> None:
        self.steps.append((row.job_id, row.claimed, row.discarded, row.keep_objects))

    def find(self, _: Any, reference: str, *, lock: bool = False) -> Job:
        self.steps.append(f"{reference} {'locked' if lock else 'read'}")
        return self.job


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    # After a live rescale the attempt 2 has the processes of the run 1.
    left = [Attempt(job_id="job", number=2, run=1), Attempt(job_id="job", number=3)]
    revision = SimpleNamespace(spec=JobSpec(artifact_id="program").given())
    restored = [("file:///claimed", ClaimMode.CLAIM), ("file:///other", ClaimMode.NO_CLAIM)]
    answers = {
        jobs.jobs: {"find": world.find},
        jobs.revisions: {"current": lambda *_: revision},
        jobs.attempts: {"unreaped": lambda *_: left, "restored_from": lambda *_: restored},
        jobs.checkpoints: {
            "waiting_discarded": lambda *_: ["file:///discarded"],
            "of_changes": lambda *_: [world.savepoint],
        },
        jobs.operations: {"reserve_id": lambda *_: None},
        jobs.snapshot_needs: {"restoring_jobs": lambda *_: []},
        jobs.series: {"remove": lambda *_: None},
        jobs.exceptions: {"remove": lambda *_: None},
        jobs.events: {"record": lambda *_, **__: None},
    }
    for module, functions in answers.items():
        for name, function in functions.items():
            monkeypatch.setattr(module, name, function)
    return world


def test_a_job_is_deleted_locked_and_the_runs_of_its_attempts_end_after_the_commit(world: World) -> None:
    jobs.delete(world.context, ADMIN, "flights")
    assert world.steps == [
        "flights locked",
        "row deleted",
        ("job", ["file:///claimed"], ["file:///discarded", "file:///of-a-change"], False),
        "committed",
        ("killed", "job", 1),
        ("killed", "job", 3),
        ("forgotten", "job"),
    ]


def test_a_job_that_leaves_its_objects_leaves_the_savepoints_of_its_changes(world: World) -> None:
    jobs.delete(world.context, ADMIN, "flights", keep_objects=True)
    assert world.steps[2] == ("job", ["file:///claimed"], ["file:///discarded"], True)
    assert world.savepoint.status is CheckpointStatus.COMPLETED


@pytest.mark.parametrize(("restoring", "stays"), [(["job"], False), (["other"], True), (["job", "other"], True)])
def test_a_savepoint_that_another_job_restores_from_stays_and_no_start_takes_one_that_goes(
    world: World, monkeypatch: pytest.MonkeyPatch, restoring: list[str], *, stays: bool
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(jobs.operations, "reserve_id", lambda _, location: asked.append(location))
    monkeypatch.setattr(
        jobs.snapshot_needs,
        "restoring_jobs",
        lambda _, location, but: asked.append((location, but)) or [Job(id=each) for each in restoring],
    )
    monkeypatch.setattr(jobs, "now_ms", lambda: 70)
    jobs.delete(world.context, ADMIN, "flights")
    location = "file:///of-a-change"
    assert asked == [location, (location, SETTLED)]
    status = CheckpointStatus.COMPLETED if stays else CheckpointStatus.DISCARDED
    assert (world.savepoint.status, world.savepoint.discard_requested_at_ms) == (status, None if stays else 70)
    assert world.steps[2][2] == ["file:///discarded", *([] if stays else [location])]


@pytest.mark.parametrize("keep_objects", [False, True])
def test_a_deletion_takes_the_points_and_exceptions_of_its_job_and_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, *, keep_objects: bool
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(jobs, "now_ms", lambda: 70)
    monkeypatch.setattr(jobs.events, "record", lambda _, **event: told.append(event))
    for module, name in ((jobs.series, "points"), (jobs.exceptions, "exceptions")):
        monkeypatch.setattr(module, "remove", lambda _, job_id, name=name: world.steps.append((name, job_id)))

    def forget(_: str) -> None:
        raise PermissionError

    world.context.launcher.forget = forget  # the removal of runs tries again
    jobs.delete(world.context, ADMIN, "flights", keep_objects=keep_objects)
    assert world.steps[1:4] == ["row deleted", ("points", "job"), ("exceptions", "job")]
    message = "deleted flights, and kept its objects" if keep_objects else "deleted flights"
    of_event = {"actor": "root", "message": message, "store_url": "file:///store"}
    assert told == [{"job_id": "job", "at_ms": 70, "kind": "JOB_DELETED", **of_event}]


def test_a_job_whose_changes_need_an_approval_is_not_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = SimpleNamespace(spec=JobSpec(artifact_id="program", approval="REQUIRED").given())
    monkeypatch.setattr(jobs.revisions, "current", lambda *_: revision)
    with pytest.raises(ApprovalRequiredError):
        jobs.delete(world.context, ADMIN, "flights")
    assert world.steps == ["flights locked"]


def test_a_deleted_job_leaves_its_name_and_its_store_once_no_driver_adds_to_its_series(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[DeletedJob] = []
    with world.context.sessions.begin() as session:
        session.add, session.flush = left.append, lambda: world.steps.append("flushed")
    world.steps.clear()
    monkeypatch.setattr(jobs, "now_ms", lambda: 70)
    monkeypatch.setattr(jobs.series, "remove", lambda *_: world.steps.append("points removed"))
    jobs.delete(world.context, ADMIN, "flights")
    assert world.steps[1:5] == ["row deleted", "flushed", "points removed", "committed"]
    [row] = left
    assert (row.job_id, row.name, row.store_url) == ("job", "flights", "file:///store")
    assert (row.deleted_at_ms, row.due_at_ms) == (70, 70)
