"""Each policy gets its savepoint in time, and each savepoint of a policy is verified."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.errors import JobStatusConflictError
from keyscale.api.snapshots import savepoint_schedule
from keyscale.api.snapshots.savepoint_schedule import SavepointSchedule
from keyscale.db.models import Checkpoint
from keyscale.db.models.operation import SAVEPOINT_POLICY
from keyscale.db.repositories.savepoint_policies import Kept, Taking
from keyscale.vocabulary import OperationKind, OperationStatus

NOW_MS, HOUR_MS = 10_000_000, 3_600_000


class Policies:
    """The policies of jobs and their savepoints, in place of a control plane."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taking: list[Taking] = []
        self.kept: list[Kept] = []
        self.refused: set[str] = set()
        self.taken: list[tuple[str, str, OperationKind]] = []
        self.verified: list[tuple[str, int, bool]] = []
        self.rung = 0
        wakeup = SimpleNamespace(ring=self._ring)
        self.context: Any = SimpleNamespace(sessions=None, pulse=None, wakeup=wakeup)
        monkeypatch.setattr(savepoint_schedule, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(savepoint_schedule.savepoint_policies, "running_policies", lambda _: self.taking)
        monkeypatch.setattr(savepoint_schedule.savepoint_policies, "kept_savepoints", lambda _: self.kept)
        monkeypatch.setattr(savepoint_schedule.jobs, "lock", lambda _, job_id: job_id if job_id != "gone" else None)
        monkeypatch.setattr(savepoint_schedule.requests, "snapshot", self._snapshot)
        monkeypatch.setattr(savepoint_schedule.verifications, "begin", self._verify)

    def poll(self) -> None:
        leadership: Any = SimpleNamespace(transaction=lambda: nullcontext(None))
        SavepointSchedule(self.context).poll(leadership)

    def _ring(self) -> None:
        self.rung += 1

    def _snapshot(self, _: Any, job: str, user: Any, __: str, kind: OperationKind) -> None:
        if job in self.refused:
            raise JobStatusConflictError("the job is being changed")
        self.taken.append((job, user.name, kind))

    def _verify(self, _: Any, __: Any, job_id: str, checkpoint_id: int, *, hashes: bool) -> None:
        if job_id in self.refused:
            raise JobStatusConflictError("others are being verified")
        self.verified.append((job_id, checkpoint_id, hashes))


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> Policies:
    return Policies(monkeypatch)


def taking(job_id: str, hours_ago: int) -> Taking:
    status = OperationStatus.COMPLETED
    return Taking(job_id, {"interval_ms": HOUR_MS}, NOW_MS - hours_ago * HOUR_MS, status)


def kept(job_id: str, checkpoint_id: int, verification: dict[str, Any] | None) -> Kept:
    return Kept(Checkpoint(job_id=job_id, checkpoint_id=checkpoint_id, verification=verification), {})


def test_due_savepoints_are_taken_though_one_job_refuses_and_another_job_is_gone(policies: Policies) -> None:
    policies.taking = [taking("changing", 1), taking("gone", 1), taking("young", 0), taking("due", 1)]
    policies.refused = {"changing"}
    policies.poll()
    assert policies.taken == [("due", SAVEPOINT_POLICY, OperationKind.SAVEPOINT)]
    assert policies.rung > 0, "the reconciler hears of the savepoint at once"


def test_each_savepoint_is_verified_once_though_one_has_to_wait(policies: Policies) -> None:
    policies.kept = [kept("busy", 1, None), kept("done", 2, {"restorable": False}), kept("new", 3, None)]
    policies.refused = {"busy"}
    policies.poll()
    assert policies.verified == [("new", 3, False)]


def test_a_policy_acts_in_its_own_name_and_wakes_the_reconciler_for_a_savepoint_alone(
    policies: Policies, monkeypatch: pytest.MonkeyPatch
) -> None:
    users: list[Any] = []
    monkeypatch.setattr(savepoint_schedule.verifications, "begin", lambda _, user, *__, **___: users.append(user))
    policies.taking, policies.refused = [taking("changing", 1), taking("young", 0)], {"changing"}
    policies.kept = [kept("new", 3, None)]
    policies.poll()
    assert (policies.taken, policies.rung, [user.name for user in users]) == ([], 0, [SAVEPOINT_POLICY])
    policies.refused.clear()
    policies.poll()
    assert (len(policies.taken), policies.rung) == (1, 1)
