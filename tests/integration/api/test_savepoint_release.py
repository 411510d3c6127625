"""Savepoints of changes are the platform's: they go when nothing needs them, and stay while something does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.lifecycle.restoring import Restore
from keyscale.api.maintenance import savepoint_release
from keyscale.api.maintenance.object_removal import ObjectRemoval
from keyscale.api.maintenance.savepoint_release import SavepointRelease
from keyscale.api.maintenance.snapshot_removal import SnapshotRemoval
from keyscale.api.snapshots import savepoint_schedule
from keyscale.api.snapshots.savepoint_schedule import SavepointSchedule
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Checkpoint, Job, Operation, Revision
from keyscale.identifiers import JobId
from keyscale.state.documents.checked_document import encode_document
from keyscale.state.documents.claim import FORMAT_VERSION, KIND, Claim, claim_path
from keyscale.state.layout import location_of
from keyscale.vocabulary import (
    AttemptStage,
    CommandStatus,
    JobStatus,
    OperationKind,
    OperationStatus,
    RestoreMode,
    SnapshotOwner,
)
from tests.support.control_plane.snapshots import Snapshots

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership

pytestmark = pytest.mark.either_database


class Changes:
    """A running job whose changes have taken savepoints, with real files in a real store."""

    def __init__(self, context: Context, leadership: Leadership, job_id: str) -> None:
        self.context, self.leadership, self.job_id = context, leadership, job_id
        self.made = Snapshots(context.sessions, job_id)
        self.number = 0
        with context.sessions.begin() as session:
            session.get_one(Job, job_id).status = JobStatus.RUNNING
        self.attempt()

    def attempt(self, restore_from: str | None = None) -> None:
        """Begins an attempt, in the place of the one before."""
        with self.context.sessions.begin() as session:
            for each in session.query(Attempt).filter_by(job_id=self.job_id):
                each.stage = AttemptStage.ENDED
            session.flush()
            self.attempts = session.query(Attempt).filter_by(job_id=self.job_id).count() + 1
            session.add(
                Attempt(
                    job_id=self.job_id, number=self.attempts, stage=AttemptStage.ACTIVE, cause="START", parallelism=2,
                    created_at_ms=1, restore_from=restore_from, restore_id=restore_from, assigned_at_ms=1,
                    restored_at_ms=None if restore_from is None else 1,
                )
            )  # fmt: skip

    def checkpoint(self, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            path = f"{self.made.layout.shared}{self.number}"
            self.made.take(self.number, {path: b"x"}, attempt=self.attempts)

    def savepoint(
        self,
        change_id: str,
        kind: OperationKind = OperationKind.RESCALE,
        status: OperationStatus = OperationStatus.COMPLETED,
    ) -> str:
        """Takes a change's savepoint, and begins the attempt that restores from it; returns the location."""
        self.number += 1
        files = {f"{self.made.layout.savepoint(change_id)}files/a": b"a" * 10}
        path = self.made.take(self.number, files, change_id, change=kind, attempt=self.attempts)
        location = location_of(self.made.store_url, path)
        with self.context.sessions.begin() as session:
            session.get_one(Operation, change_id).status = status
            # The control plane clears it when it next needs to know it.
            session.get_one(Job, self.job_id).restore = Restore(location, location=location).dump()
        self.attempt(restore_from=location)
        return location

    def end(self, change_id: str, status: OperationStatus) -> None:
        with self.context.sessions.begin() as session:
            session.get_one(Operation, change_id).status = status

    def left(self) -> list[str]:
        """Returns which savepoints are in the store after a pass of each thread."""
        SavepointRelease(self.context.sessions, ReconcilerPulse(), self.context.store).run(self.leadership)
        removal = SnapshotRemoval(self.context.sessions, ReconcilerPulse())
        while removal.work(self.leadership):
            pass
        return sorted({path.split("/")[1] for path in self.made.paths() if path.startswith("savepoints/")})


@pytest.fixture
def changes(context: Context, leadership: Leadership, job: dict[str, Any]) -> Changes:
    made = Changes(context, leadership, job["id"])
    made.checkpoint(2)
    return made


def test_a_rescales_savepoint_goes_once_its_attempt_has_two_checkpoints(changes: Changes) -> None:
    changes.savepoint("wider")
    assert changes.left() == ["wider"], "the job starts from it"
    changes.checkpoint()
    assert changes.left() == ["wider"], "a batch that runs meanwhile may be rebuilt from it"
    changes.checkpoint()
    assert changes.left() == []


def test_a_savepoint_stays_until_its_change_has_ended(changes: Changes) -> None:
    changes.savepoint("wider", status=OperationStatus.IN_PROGRESS)
    changes.checkpoint(3)
    assert changes.left() == ["wider"], "the change may roll back to it"
    changes.end("wider", OperationStatus.ROLLED_BACK)
    assert changes.left() == []


@pytest.mark.parametrize("kind", [OperationKind.RESCALE, OperationKind.SAVEPOINT])
def test_a_savepoint_is_listed_that_its_driver_published_and_could_not_report_before_a_cancel(
    changes: Changes, kind: OperationKind
) -> None:
    location = changes.savepoint("unheard", kind, OperationStatus.CANCELLED)
    number = changes.number
    with changes.context.sessions.begin() as session:
        operation = session.get_one(Operation, "unheard")
        operation.command_status, operation.ended_at_ms, operation.old_attempt = CommandStatus.FAILED, now_ms(), 1
        session.delete(session.get_one(Checkpoint, (changes.job_id, number)))
    changes.attempt()
    changes.left()
    with changes.context.sessions() as session:
        listed = session.get_one(Checkpoint, (changes.job_id, number))
        assert (listed.external_path, listed.savepoint_id, listed.state_size) == (location, "unheard", 10)
    changes.checkpoint(3)
    assert changes.left() == ([] if kind is OperationKind.RESCALE else ["unheard"]), "a user's savepoint stays"


@pytest.mark.parametrize("kind", [OperationKind.UPGRADE, OperationKind.ROLLBACK])
def test_an_upgrades_savepoint_stays_for_a_rollback_until_the_next_upgrade_is_complete(
    changes: Changes, kind: OperationKind
) -> None:
    changes.savepoint("first", OperationKind.UPGRADE)
    changes.checkpoint(3)
    assert changes.left() == ["first"]
    changes.savepoint("wider")
    changes.checkpoint(3)
    assert changes.left() == ["first"], "a rescale changes no program"
    changes.savepoint("failed", kind, OperationStatus.ROLLED_BACK)
    changes.checkpoint(3)
    assert changes.left() == ["first"], "the job runs the same revision as before the failed change"
    changes.savepoint("second", kind, OperationStatus.IN_PROGRESS)
    changes.checkpoint(3)
    assert changes.left() == ["first", "second"], "the change may roll back"
    changes.end("second", OperationStatus.COMPLETED)
    assert changes.left() == ["second"]


def test_a_policy_takes_a_savepoint_has_it_verified_and_keeps_the_newest(
    changes: Changes, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changes.context.sessions.begin() as session:
        spec = session.query(Revision).filter_by(job_id=changes.job_id).one()
        spec.spec = {**spec.spec, "savepoints": {"interval_ms": 60_000, "keep_count": 2, "keep_age_ms": None}}
    schedule = SavepointSchedule(changes.context)
    verified: list[int] = []
    monkeypatch.setattr(
        savepoint_schedule.verifications,
        "begin",
        lambda *of, **_: verified.append(of[3]),  # by a thread of its own
    )
    schedule.poll(changes.leadership)
    schedule.poll(changes.leadership)
    [taken] = client.get(f"/v1/jobs/{changes.job_id}/operations").json()["operations"]
    assert (taken["kind"], taken["status"], taken["requested_by"]) == ("SAVEPOINT", "IN_PROGRESS", "savepoint policy")
    changes.end(taken["id"], OperationStatus.COMPLETED)
    for savepoint_id in ("first", "second", "third"):
        changes.number += 1
        files = {f"{changes.made.layout.savepoint(savepoint_id)}files/a": b"a"}
        changes.made.take(changes.number, files, savepoint_id, change=OperationKind.SAVEPOINT)
    changes.made.take(changes.number + 1, {f"{changes.made.layout.savepoint('own')}files/a": b"a"}, "own")
    schedule.poll(changes.leadership)
    assert verified == [changes.number, changes.number - 1, changes.number - 2]
    assert changes.left() == ["own", "second", "third"]


def test_a_savepoint_of_a_policy_belongs_to_the_platform_and_of_a_user_to_the_user() -> None:
    own, policys = (Operation(kind=OperationKind.SAVEPOINT, requested_by=name) for name in ("ann", "savepoint policy"))
    assert (own.savepoint_owner, policys.savepoint_owner) == (SnapshotOwner.USER, SnapshotOwner.PLATFORM)


def test_a_savepoint_stays_while_another_job_starts_from_it(changes: Changes, client: httpx.Client) -> None:
    location = changes.savepoint("wider")
    changes.checkpoint(3)
    with changes.context.sessions.begin() as session:
        origin = session.get_one(Job, changes.job_id)
        values = {column.name: getattr(origin, column.name) for column in Job.__table__.columns}
        restore = Restore("r", RestoreMode.REWIND, location).dump()
        del values["user_number"]
        session.add(Job(**{**values, "id": "copy", "name": "copy", "status": JobStatus.CREATED, "restore": restore}))
    assert changes.left() == ["wider"]
    with changes.context.sessions.begin() as session:
        session.get_one(Job, "copy").restore = None
    assert changes.left() == []
    assert client.get("/v1/operations/wider").json()["result"]["discarded"]


def test_a_claimed_savepoint_is_left_to_the_job_that_has_claimed_it(changes: Changes) -> None:
    path = changes.savepoint("wider").removeprefix(changes.made.store_url).lstrip("/")
    changes.checkpoint(3)
    changes.made.store.create(claim_path(path), encode_document(KIND, FORMAT_VERSION, Claim(JobId("other"))))
    assert changes.left() == ["wider"]


def test_a_kept_savepoint_is_its_users_and_stays(changes: Changes, client: httpx.Client) -> None:
    def owners() -> set[str]:
        listed = client.get("/v1/jobs/flights/savepoints").json()["savepoints"]
        for owner in ("USER", "PLATFORM"):
            chosen = client.get("/v1/jobs/flights/savepoints", params={"owner": owner}).json()["savepoints"]
            assert chosen == [each for each in listed if each["owner"] == owner]
        shown = [
            client.get("/v1/jobs/flights/savepoints/wider").json(),
            client.get("/v1/jobs/flights/checkpoints/3").json(),
        ]
        return {each["owner"] for each in [*listed, *shown]}

    changes.savepoint("wider")
    assert owners() == {"PLATFORM"}
    answer = client.post("/v1/jobs/flights/savepoints/wider/keep")
    assert (answer.status_code, answer.json()["owner"]) == (200, "USER"), answer.text
    assert client.post("/v1/jobs/flights/savepoints/wider/keep").status_code == 200
    assert owners() == {"USER"}
    changes.checkpoint(3)
    assert changes.left() == ["wider"]
    kept = [
        event for event in client.get("/v1/jobs/flights/events").json()["events"] if event["kind"] == "SAVEPOINT_KEPT"
    ]
    assert len(kept) == 1
    of_savepoint = client.get("/v1/jobs/flights/savepoints/wider").json()
    assert (kept[0]["actor"], kept[0]["details"]) == (
        "admin",
        {"checkpoint_id": of_savepoint["checkpoint_id"], "location": of_savepoint["external_path"]},
    )
    assert client.post("/v1/jobs/flights/savepoints/none/keep").json()["code"] == "SAVEPOINT_NOT_FOUND"
    assert client.delete("/v1/jobs/flights/savepoints/wider").status_code == 202
    assert client.post("/v1/jobs/flights/savepoints/wider/keep").json()["code"] == "SAVEPOINT_NOT_FOUND"


def test_a_savepoint_that_its_user_keeps_while_the_store_is_asked_stays(
    changes: Changes, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes.savepoint("wider")
    changes.checkpoint(3)

    def kept_meanwhile(*_: Any) -> None:
        assert client.post("/v1/jobs/flights/savepoints/wider/keep").status_code == 200

    monkeypatch.setattr(savepoint_release, "claimant_of", kept_meanwhile)
    assert changes.left() == ["wider"]


def test_a_savepoint_that_a_job_starts_from_while_the_store_is_asked_stays(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Restore("r", RestoreMode.REWIND, changes.savepoint("wider")).dump()
    changes.checkpoint(3)

    def started_meanwhile(*_: Any) -> None:
        with changes.context.sessions.begin() as session:
            session.get_one(Job, changes.job_id).restore = restore

    monkeypatch.setattr(savepoint_release, "claimant_of", started_meanwhile)
    assert changes.left() == ["wider"]


def test_a_users_savepoint_is_never_released(changes: Changes) -> None:
    changes.number += 1
    changes.made.take(changes.number, {f"{changes.made.layout.savepoint('mine')}files/a": b"a"}, "mine")
    changes.checkpoint(3)
    assert changes.left() == ["mine"]


def test_a_deleted_jobs_savepoints_of_changes_are_deleted_and_its_users_stay(
    changes: Changes, client: httpx.Client
) -> None:
    changes.savepoint("first", OperationKind.UPGRADE)
    changes.savepoint("second", OperationKind.UPGRADE)
    client.post("/v1/jobs/flights/savepoints/first/keep")
    with changes.context.sessions.begin() as session:
        session.get_one(Job, changes.job_id).status = JobStatus.STOPPED
    assert client.delete("/v1/jobs/flights").status_code == 204
    assert ObjectRemoval(changes.context.sessions, ReconcilerPulse()).work(changes.leadership)
    assert changes.made.paths() == {"savepoints/first/manifest.json", "savepoints/first/files/a"}
