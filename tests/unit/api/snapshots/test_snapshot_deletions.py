"""A snapshot is deleted once nothing can start from it any more."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.lifecycle import snapshot_uses
from keyscale.api.snapshots import snapshot_deletions as service
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Checkpoint, Job, Operation
from keyscale.vocabulary import CheckpointStatus, CommandStatus, JobStatus, Role

SESSION: Any = None
USER = Principal("id", "ann", Role.OPERATOR, JobScope(frozenset({"flights"})))


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
