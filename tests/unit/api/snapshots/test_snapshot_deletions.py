"""A snapshot is deleted once nothing can start from it any more."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import SnapshotNeededError
from keyscale.api.lifecycle import snapshot_uses
from keyscale.api.snapshots import snapshot_deletions as service
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Checkpoint, Job, Operation
from keyscale.state.retention.snapshot_deletion import SnapshotObjects
from keyscale.vocabulary import CheckpointStatus, CommandStatus, JobStatus, Role

SESSION: Any = None
USER = Principal("id", "ann", Role.OPERATOR, JobScope(frozenset({"flights"})))


class Sessions:
    """The database, in place of a control plane's."""

    def __call__(self) -> Any:
        return nullcontext(SESSION)

    begin = __call__


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the reasons against the deletion of a snapshot, and its consequences."""

    def find(
        found: Checkpoint,
        status: JobStatus = JobStatus.RUNNING,
        *,
        newest: int = 9,
        checkpoints: tuple[int, ...] = (9, 8, 6),
        jobs: tuple[Job, ...] = (),
        changes: tuple[str, ...] = (),
        revisions: tuple[int, ...] = (),
        command: Operation | None = None,
    ) -> tuple[list[str], list[str]]:
        of = service.snapshot_needs
        latest = Checkpoint(checkpoint_id=newest)
        monkeypatch.setattr(service.checkpoints, "latest_completed", lambda _, job_id: {"job": latest}[job_id])
        monkeypatch.setattr(of, "newest_checkpoints", lambda _, job_id, limit: {"job": checkpoints}[job_id][:limit])
        monkeypatch.setattr(of, "restoring_jobs", lambda _, location, __: {found.external_path: jobs}[location])
        monkeypatch.setattr(of, "running_changes", lambda *key: {("job", found.external_path): changes}[key[1:]])
        monkeypatch.setattr(of, "revisions_kept_by", lambda *key: {("job", found.external_path): revisions}[key[1:]])
        monkeypatch.setattr(snapshot_uses.operations, "find", lambda _, name: {"s": command}.get(name))
        job = Job(id="job", name="flights", status=status)
        return service._needs(SESSION, USER, job, found)

    return find


def snapshot(number: int, **columns: Any) -> Checkpoint:
    given = {"status": CheckpointStatus.COMPLETED, "external_path": f"file:///{number}", "is_savepoint": False}
    return Checkpoint(job_id="job", checkpoint_id=number, **{**given, **columns})


@pytest.mark.parametrize(
    ("number", "status", "newest", "reason"),
    [
        (9, JobStatus.RUNNING, 9, "it is the newest snapshot"),
        (9, JobStatus.STOPPED, 9, "it is the newest snapshot"),
        (9, JobStatus.STOPPED, 10, "it is the newest checkpoint"),
        (8, JobStatus.RUNNING, 9, "may still use it"),
        (8, JobStatus.STOPPED, 9, None),
        (6, JobStatus.RUNNING, 9, None),
    ],
)
def test_the_newest_snapshots_stay_and_a_running_job_may_still_read_the_one_before(
    needs: Any, number: int, status: JobStatus, newest: int, reason: str | None
) -> None:
    reasons, consequences = needs(snapshot(number), status, newest=newest)
    assert [reason or "" in each for each in reasons] == ([] if reason is None else [reason])
    assert consequences == []


@pytest.mark.parametrize(
    "columns", [{"status": CheckpointStatus.SUBSUMED}, {"status": CheckpointStatus.FAILED}, {"external_path": None}]
)
def test_a_snapshot_of_which_nothing_is_there_is_not_deleted(needs: Any, columns: dict[str, Any]) -> None:
    reasons, _ = needs(snapshot(6, **columns))
    assert len(reasons) == 1
    assert "nothing of it is there" in reasons[0]


@pytest.mark.parametrize(
    ("status", "command", "is_needed"),
    [
        (JobStatus.RUNNING, CommandStatus.IN_PROGRESS, True),
        (JobStatus.RUNNING, CommandStatus.COMPLETED, False),
        (JobStatus.STOPPED, CommandStatus.IN_PROGRESS, False),
    ],
)
def test_a_savepoint_stays_while_its_operation_goes_on(
    needs: Any, status: JobStatus, command: CommandStatus, is_needed: bool
) -> None:
    taken, taking = snapshot(6, is_savepoint=True, savepoint_id="s"), Operation(job_id="job", command_status=command)
    reasons, _ = needs(taken, status, command=taking)
    assert bool(reasons) is is_needed
    assert needs(taken, status, command=None) == ([], [])
    assert needs(snapshot(6, savepoint_id="s"), status, command=taking) == ([], []), "no savepoint"


def test_jobs_and_changes_that_restore_from_it_keep_it_and_a_hidden_job_is_not_named(needs: Any) -> None:
    jobs = (Job(id="1", name="flights", labels={}), Job(id="2", name="secret", labels={}))
    reasons, consequences = needs(snapshot(6), jobs=jobs, changes=("c",), revisions=(3, 4))
    assert reasons == [
        "the job flights restores from it",
        "a job that you may not see restores from it",
        "the change c goes back to it",
    ]
    assert ["revision 3 " in consequences[0], "revision 4 " in consequences[1]] == [True, True]


@pytest.mark.parametrize(
    ("before", "then", "refusal"),
    [
        ([], [], None),
        (["a restores from it", "b"], [], "^a restores from it; b$"),
        ([], ["it has become the newest", "b"], "^it has become the newest; b$"),
    ],
    ids=["unused", "in use", "in use since it was shown"],
)
@pytest.mark.parametrize("is_savepoint", [False, True])
def test_a_snapshot_is_deleted_if_nothing_needs_it_once_no_start_can_take_it(
    monkeypatch: pytest.MonkeyPatch, *, before: list[str], then: list[str], refusal: str | None, is_savepoint: bool
) -> None:
    found = snapshot(8, is_savepoint=is_savepoint, savepoint_id="s" if is_savepoint else None)
    job, steps, told = Job(id="job", name="flights"), list[Any](), list[dict[str, Any]]()
    reasons = iter([before, before, then])  # of a dry run, of an answer, and before the deletion

    def require(_: Any, reference: str, *, lock: bool = False) -> Job:
        steps.extend([f"locked {reference}"] if lock else [])
        return job

    def needed(*_: Any) -> tuple[list[str], list[str]]:
        steps.append("needs")
        return list(next(reasons)), ["a consequence"]

    monkeypatch.setattr(service, "require_job", require)
    monkeypatch.setattr(service, "require_job_id", lambda *_: "job")
    monkeypatch.setattr(service.checkpoints, "find", lambda _, *key: {("job", 8): found}[key])
    monkeypatch.setattr(service.checkpoints, "find_savepoint", lambda _, *key: {("job", "s"): found}[key])
    monkeypatch.setattr(service, "_needs", needed)
    monkeypatch.setattr(service, "_objects", lambda *_: (SnapshotObjects({"a": 1, "b": 2}, {"c": 4}), []))
    monkeypatch.setattr(service.operations, "reserve_id", lambda _, name: steps.append(f"reserved {name}"))
    monkeypatch.setattr(service.events, "record", lambda _, **event: told.append(event))
    monkeypatch.setattr(service, "now_ms", lambda: 70)
    context: Any = SimpleNamespace(sessions=Sessions())

    def delete(*, dry_run: bool) -> Any:
        if is_savepoint:
            return service.delete_savepoint(context, USER, "flights", "s", dry_run=dry_run)
        return service.delete_checkpoint(context, USER, "flights", 8, dry_run=dry_run)

    expected = {
        "job_id": "job",
        "checkpoint_id": 8,
        "savepoint_id": found.savepoint_id,
        "location": "file:///8",
        "allowed": not before,
        "reasons": before,
        "consequences": ["a consequence"],
        "freed_objects": 2,
        "freed_bytes": 3,
        "shared_bytes": 4,
    }
    assert delete(dry_run=True).model_dump() == expected
    assert (steps, told, found.status) == (["needs"], [], CheckpointStatus.COMPLETED)
    if refusal is not None:
        with pytest.raises(SnapshotNeededError, match=refusal):
            delete(dry_run=False)
        assert (told, found.status, found.discard_requested_at_ms) == ([], CheckpointStatus.COMPLETED, None)
        return
    assert delete(dry_run=False).model_dump() == expected
    assert steps[1:] == ["needs", "locked job", "reserved file:///8", "needs"]
    assert (found.status, found.discard_requested_at_ms) == (CheckpointStatus.DISCARDED, 70)
    noun = "savepoint" if is_savepoint else "checkpoint"
    [event] = told
    assert (event["kind"], event["actor"], event["at_ms"]) == (f"{noun.upper()}_DISCARDED", "ann", 70)
    assert (event["checkpoint_id"], event["location"]) == (8, "file:///8")
    assert event["message"] == f"{noun} 8 is deleted, which frees 3 B"


def test_a_deletion_names_the_uses_in_the_database_and_then_the_uses_in_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = snapshot(8)
    monkeypatch.setattr(service, "require_job", lambda *_, **__: Job(id="job", name="flights"))
    monkeypatch.setattr(service.checkpoints, "find", lambda *_: found)
    monkeypatch.setattr(service, "_needs", lambda *_: (["a job restores from it"], []))
    monkeypatch.setattr(service, "_objects", lambda *_: (SnapshotObjects({}, {}), ["a job has claimed it"]))
    context: Any = SimpleNamespace(sessions=Sessions())
    shown = service.delete_checkpoint(context, USER, "flights", 8, dry_run=True)
    assert (shown.allowed, shown.reasons) == (False, ["a job restores from it", "a job has claimed it"])
