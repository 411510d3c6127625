"""What was so at the first look is looked at again with the job locked, before anything changes.

The store is asked between the two looks, without a transaction: a user may start, change or delete the job meanwhile.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.in_flight import InFlight
from keyscale.api.access.principal import Principal
from keyscale.api.autoscaling import autoscaler
from keyscale.api.autoscaling.decision import Decision
from keyscale.api.errors import ApiError, JobStatusConflictError, SnapshotNeededError
from keyscale.api.key_state import changed_keys
from keyscale.api.key_state.schemas import KeyChangeRequest
from keyscale.api.maintenance import savepoint_release
from keyscale.api.snapshots import snapshot_deletions
from keyscale.db.models import Checkpoint, Job
from keyscale.state.retention.snapshot_deletion import SnapshotObjects
from keyscale.vocabulary import CheckpointStatus, JobStatus, Role, ScalingVerdict, SnapshotOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ADMIN = Principal("admin", "root", Role.ADMIN)


class World:
    """A job with a snapshot, which changes once the job is locked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.job = Job(id="job", name="flights", store_url="file:///store", status=JobStatus.STOPPED, revision=3)
        self.snapshot = Checkpoint(
            job_id="job",
            checkpoint_id=6,
            savepoint_id="s",
            is_savepoint=True,
            owner=SnapshotOwner.PLATFORM,
            status=CheckpointStatus.COMPLETED,
            external_path="file:///store/job/savepoints/s/manifest.json",
        )
        self.changes = False
        self.is_changed = False
        self.stored: list[Any] = []
        self.context: Any = SimpleNamespace(
            sessions=self,
            reads=self.begin,
            state_reads=InFlight("read of state", "reads of state", 1, 1),
            settings=SimpleNamespace(plan_timeout_ms=1),
            metrics=None,
            wakeup=None,
        )
        for module in (savepoint_release, snapshot_deletions, changed_keys, autoscaler):
            for repository, name, function in (
                ("jobs", "find", self.find),
                ("jobs", "lock", lambda _, job_id: self.find(_, job_id, lock=True)),
                ("checkpoints", "find", lambda *_: self.snapshot),
                ("operations", "reserve_id", lambda *_: None),
                ("events", "record", lambda *_, **event: self._record(event["kind"])),
            ):
                if hasattr(module, repository):
                    monkeypatch.setattr(getattr(module, repository), name, function)

    def find(self, _: Any, reference: str, *, lock: bool = False) -> Job:
        assert reference in {"job", "flights"}
        self.is_changed |= lock and self.changes
        return self.job

    def _record(self, kind: str) -> None:
        if not kind.endswith("_REQUESTED"):  # before the store is asked
            self.stored.append(kind)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        yield SimpleNamespace(add=self.stored.append)

    transaction = __call__ = begin


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def release(world: World) -> None:
    world.patch.setattr(savepoint_release, "uses_of", lambda *_: ["a job"] if world.is_changed else [])
    world.patch.setattr(savepoint_release, "open_to_read", lambda _: None)
    world.patch.setattr(savepoint_release, "claimant_of", lambda *_: None)
    leadership: Any = world
    assert savepoint_release._release(leadership, world.snapshot) is not world.changes


def delete_snapshot(world: World) -> None:
    of = snapshot_deletions
    world.patch.setattr(of, "require_job", world.find)
    world.patch.setattr(of, "uses_of", lambda *_: ["a job"] if world.is_changed else [])
    world.patch.setattr(of.snapshot_needs, "revisions_kept_by", lambda *_: [])
    world.patch.setattr(of, "read_within", lambda *_, **__: (SnapshotObjects({}, {}), [], None))
    of.delete_checkpoint(world.context, ADMIN, "job", 6, dry_run=False)


def change_keys(world: World) -> None:
    """The job has had another attempt since the state was read."""
    numbers = iter((3, 4 if world.changes else 3))
    world.patch.setattr(changed_keys, "require_job", world.find)
    world.patch.setattr(changed_keys.checkpoints, "find_savepoint", lambda *_: None)
    world.patch.setattr(changed_keys.checkpoints, "next_id", lambda *_: 7)
    world.patch.setattr(changed_keys.checkpoints, "find", lambda *_: None)
    world.patch.setattr(changed_keys.attempts, "next_number", lambda *_: next(numbers))
    world.patch.setattr(changed_keys.events, "requested_state_changes", lambda *_: [])
    world.patch.setattr(changed_keys, "_source", lambda *_: world.snapshot.external_path)
    location = "file:///store/job/savepoints/mine/manifest.json"
    row = {"operator": "count", "state": "clicks", "key": {"user": 1}, "key_group": 0, "before": [], "after": []}
    changed = {"location": location, "created_at_ms": 1, "state_size_bytes": 2, "batch_id": 3, "changes": [row]}
    world.patch.setattr(changed_keys, "read_state", lambda *_: changed)
    request = KeyChangeRequest.model_validate({"operator": "count", "state": "clicks", "key": "1", "value": 2})
    changed_keys.change(world.context, ADMIN, "flights", request)


def scale(world: World) -> None:
    """The job has got another revision since the facts were read."""
    settled = autoscaler.Autoscaler.__new__(autoscaler.Autoscaler)
    world.patch.setattr(autoscaler.attempts, "of_stage", lambda *_: None)
    world.patch.setattr(autoscaler.scaling, "record", lambda _, row: world.stored.append(row))
    world.job.revision = 4 if world.changes else 3
    facts: Any = SimpleNamespace(at_ms=1)
    seen: Any = SimpleNamespace(id="job", revision=3, spec={})
    world.patch.setattr(autoscaler, "_columns", lambda *_: {})
    settled._store(world, seen, facts, Decision(ScalingVerdict.STEADY, 2, 2, "enough"), ())


ACTIONS: list[tuple[Callable[[World], None], type[ApiError] | None]] = [
    (release, None),
    (delete_snapshot, SnapshotNeededError),
    (change_keys, JobStatusConflictError),
    (scale, None),
]


@pytest.mark.parametrize(("act", "error"), ACTIONS)
def test_an_action_is_refused_if_its_reason_has_gone_since_the_first_look(
    world: World, act: Callable[[World], None], error: type[ApiError] | None
) -> None:
    act(world)
    assert world.stored, "without a change in between it is carried out"
    world.stored.clear()
    world.snapshot.status, world.changes = CheckpointStatus.COMPLETED, True
    if error is None:
        act(world)
    else:
        with pytest.raises(error):
            act(world)
    assert (world.stored, world.snapshot.status) == ([], CheckpointStatus.COMPLETED)
