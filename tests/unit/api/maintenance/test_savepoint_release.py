"""Savepoints that a driver could not report are listed, and savepoints that nothing uses are released."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.errors import StoreUnavailableError
from keyscale.api.maintenance import savepoint_release as service
from keyscale.api.maintenance.savepoint_release import RETRY_S, UNREPORTED_MS, SavepointRelease
from keyscale.api.store_check import PublishedSavepoint
from keyscale.db.models import Checkpoint, Event, Job, Operation
from keyscale.identifiers import CheckpointId
from keyscale.vocabulary import CheckpointStatus, JobStatus, SnapshotOwner

NOW_MS = 10 * UNREPORTED_MS
STORE_URL = "file:///store"
PUBLISHED = PublishedSavepoint(f"{STORE_URL}/job/savepoints/s/manifest.json", CheckpointId(8), 5, 600, 70)
OF_STORE = {"location": PUBLISHED.location, "checkpoint_id": 8, "batch_id": 5, "state_size": 600, "created_at_ms": 70}


class World:
    """A job with a savepoint that the platform may release, list, or neither."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job: Job | None = Job(id="job", name="flights", status=JobStatus.STOPPED, store_url=STORE_URL)
        self.savepoint: Checkpoint | None = Checkpoint(
            job_id="job",
            checkpoint_id=8,
            savepoint_id="s",
            external_path=PUBLISHED.location,
            owner=SnapshotOwner.PLATFORM,
            status=CheckpointStatus.COMPLETED,
        )
        self.releasable: list[Checkpoint] = []
        self.unreported: list[tuple[Operation, str]] = []
        self.changes: list[tuple[Event, str]] = []
        self.uses: list[list[str]] = [[], []]
        self.claimant: str | None = None
        self.listed: Checkpoint | None = None
        self.known_savepoint: Checkpoint | None = None
        self.next_attempt = 4
        self.published: PublishedSavepoint | Exception | None = PUBLISHED
        self.now_s = 1000.0
        self.steps: list[Any] = []
        replaced: dict[Any, dict[str, Any]] = {
            service.jobs: {"find": lambda *_: self.job, "lock": self._lock},
            service.operations: {
                "without_savepoint": lambda _, since_ms: self._since(since_ms) or self.unreported,
                "reserve_id": lambda _, name: self.steps.append(f"reserved {name}"),
            },
            service.events: {
                "changes_without_savepoint": lambda _, since_ms: self._since(since_ms) or self.changes,
                "record": lambda _, **event: self.steps.append(event),
            },
            service.snapshot_needs: {"releasable_savepoints": lambda _: self.releasable},
            service.savepoint_policies: {"kept_savepoints": lambda _: "kept"},
            service.checkpoints: {
                "find": lambda _, *key: {("job", 8): self.savepoint if self.releasable else self.listed}[key],
                "find_savepoint": lambda _, *key: {("job", "s"): self.known_savepoint}[key],
                "store_published": lambda _, operation, **found: self.steps.append((operation.id, found)),
                "store_changed": lambda _, *key, **found: self.steps.append((*key, found)),
            },
            service.attempts: {"next_number": lambda _, job_id: {"job": self.next_attempt}[job_id]},
        }
        for module, functions in replaced.items():
            for name, function in functions.items():
                monkeypatch.setattr(module, name, function)
        monkeypatch.setattr(service, "now_ms", lambda: NOW_MS)
        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(service, "outdated", lambda kept, at_ms: {("kept", NOW_MS): []}[kept, at_ms])
        monkeypatch.setattr(service, "uses_of", lambda *_: self._step("uses") or self.uses.pop(0))
        monkeypatch.setattr(service, "open_to_read", lambda url: f"store {url}")
        monkeypatch.setattr(service, "claimant_of", self._claimant_of)
        unused: Any = None
        store: Any = SimpleNamespace(find_savepoint=self._find_savepoint)
        self.release = SavepointRelease(unused, unused, store)

    def _step(self, what: str) -> None:
        self.steps.append(what)

    def _since(self, since_ms: int) -> None:
        assert since_ms == NOW_MS - UNREPORTED_MS

    def _lock(self, _: Any, job_id: str) -> Job | None:
        self.steps.append(f"locked {job_id}")
        return self.job

    def _claimant_of(self, *of: Any) -> str | None:
        assert of == (f"store {STORE_URL}", "job/savepoints/s/manifest.json")
        self.steps.append("claim")
        return self.claimant

    def _find_savepoint(self, *of: Any) -> PublishedSavepoint | None:
        assert of == (STORE_URL, "job", "s")
        self.steps.append("looked for")
        if isinstance(self.published, Exception):
            raise self.published
        return self.published

    def run(self, after_s: float = 0.0) -> int:
        self.now_s += after_s
        leadership: Any = SimpleNamespace(transaction=lambda: nullcontext(None))
        return self.release.run(leadership)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_savepoint_that_nothing_uses_is_released_once_no_start_can_take_it(world: World) -> None:
    assert world.savepoint is not None
    world.releasable = [world.savepoint]
    assert world.run() == 1
    *before, event = world.steps
    assert before == ["uses", "claim", "locked job", f"reserved {PUBLISHED.location}", "uses"]
    assert (world.savepoint.status, world.savepoint.discard_requested_at_ms) == (CheckpointStatus.DISCARDED, NOW_MS)
    assert event == {
        "job_id": "job",
        "at_ms": NOW_MS,
        "kind": "SAVEPOINT_DISCARDED",
        "message": "savepoint 8 of operation s is needed no more",
        "checkpoint_id": 8,
        "location": PUBLISHED.location,
    }


@pytest.mark.parametrize(
    "facts",
    [
        {"uses": [["a job restores from it"], []]},
        {"uses": [[], ["a job restores from it"]]},
        {"claimant": "other"},
        {"owner": SnapshotOwner.USER},
        {"savepoint": None},
        {"job": None},
    ],
    ids=["in use", "in use meanwhile", "claimed", "kept by its user", "gone", "without its job"],
)
def test_a_savepoint_that_is_needed_stays_and_is_looked_at_again_later(world: World, facts: dict[str, Any]) -> None:
    candidate = world.savepoint
    assert candidate is not None
    world.releasable = [candidate]
    for name, value in facts.items():
        setattr(candidate if name == "owner" else world, name, value)
    assert world.run() == 0
    assert candidate.status is CheckpointStatus.COMPLETED
    looks = len(world.steps)
    world.run(RETRY_S - 1)
    assert len(world.steps) == looks
    world.job, world.savepoint, world.claimant, world.uses = (
        Job(id="job", store_url=STORE_URL),
        candidate,
        None,
        [[], []],
    )
    candidate.owner = SnapshotOwner.PLATFORM
    assert world.run(1) == 1


def test_a_savepoint_that_its_driver_could_not_report_is_listed(world: World) -> None:
    world.unreported = [(Operation(id="s", job_id="job"), STORE_URL)]
    world.published = None
    world.run()
    world.run(1)
    assert world.steps == ["looked for"]
    world.published = StoreUnavailableError("away")
    world.run(RETRY_S)
    world.published = PUBLISHED
    world.run(RETRY_S)
    assert world.steps[1:] == ["looked for", "looked for", "locked job", ("s", OF_STORE)]
    world.job = None
    world.run(RETRY_S)
    assert world.steps[5:] == ["looked for", "locked job"], "its job was deleted"


def change(**details: Any) -> Event:
    known = {"savepoint_id": "s", "checkpoint_id": 8, "attempt": 3, "derived_from": "file:///source", **details}
    return Event(job_id="job", actor="ann", message="savepoint s sets state", details=known)


def test_a_changed_savepoint_whose_control_plane_ended_is_listed_for_its_user(world: World) -> None:
    world.changes = [(change(), STORE_URL)]
    world.run()
    assert world.steps == [
        "looked for",
        "locked job",
        ("job", "s", OF_STORE),
        {
            "job_id": "job",
            "at_ms": NOW_MS,
            "kind": "STATE_CHANGED",
            "actor": "ann",
            "message": "savepoint s sets state",
            "checkpoint_id": 8,
            "location": PUBLISHED.location,
            "derived_from": "file:///source",
        },
    ]


@pytest.mark.parametrize(
    ("facts", "event"),
    [
        ({"job": None}, change()),
        ({"job": Job(id="job", status=JobStatus.RUNNING)}, change()),
        ({"known_savepoint": Checkpoint()}, change()),
        ({"next_attempt": 5}, change()),
        ({}, change(checkpoint_id=7)),
        ({"listed": Checkpoint()}, change()),
    ],
    ids=["without its job", "of a running job", "known", "of a job that has run since", "of another number", "taken"],
)
def test_a_changed_savepoint_that_is_no_longer_the_jobs_state_stays_unlisted(
    world: World, facts: dict[str, Any], event: Event
) -> None:
    world.changes = [(event, STORE_URL)]
    for name, value in facts.items():
        setattr(world, name, value)
    world.run()
    assert world.steps == ["looked for", "locked job"]
