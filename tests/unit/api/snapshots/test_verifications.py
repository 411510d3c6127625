"""A verification is begun once, and one whose control plane has ended is shown as failed."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import CheckpointNotFoundError, TooManyInFlightError, VerificationNotFoundError
from keyscale.api.snapshots import verifications as service
from keyscale.api.snapshots.verifications import LOST_MS
from keyscale.db.models import Checkpoint, Job
from keyscale.vocabulary import CheckpointStatus, CommandStatus, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW_MS = 1_000_000
USER = Principal("id", "ann", Role.OPERATOR)
RUNNING = {"status": "IN_PROGRESS", "hashes": True, "started_at_ms": 5, "beat_at_ms": NOW_MS - LOST_MS, "files": 3}
LOST = {**RUNNING, "beat_at_ms": NOW_MS - LOST_MS - 1}
ENDED = {**RUNNING, "status": "COMPLETED", "ended_at_ms": 9, "restorable": True}


class World:
    """A job with the checkpoint 7, and what is done with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found = Checkpoint(
            job_id="job", checkpoint_id=7, status=CheckpointStatus.COMPLETED, external_path="file:///7"
        )
        self.job = Job(id="job", name="flights")
        self.steps: list[Any] = []
        session = SimpleNamespace(flush=lambda: self._step("flushed"), expunge_all=lambda: self._step("detached"))
        context: Any = SimpleNamespace(sessions=Sessions(session), verifier=SimpleNamespace(submit=self._submit))
        self.context = context
        monkeypatch.setattr(service, "now_ms", lambda: NOW_MS)
        monkeypatch.setattr(service, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(service, "require_job", self._require)
        monkeypatch.setattr(service, "require_job_id", lambda _, name: {"flights": "job"}[name])
        monkeypatch.setattr(service.checkpoints, "find", lambda _, *key: {("job", 7): self.found}.get(key))
        monkeypatch.setattr(service.events, "record", lambda _, **event: self._step(event))

    def _step(self, what: Any) -> None:
        self.steps.append(what)

    def _submit(self, *what: Any) -> None:
        self.steps.append(what)

    def _require(self, _: Any, name: str, *, lock: bool) -> Job:
        assert (name, lock) == ("flights", True)
        return self.job

    def begin(self, number: int = 7, *, hashes: bool = False) -> dict[str, Any]:
        return service.begin(self.context, USER, "flights", number, hashes=hashes).model_dump(exclude_defaults=True)

    def show(self, number: int = 7) -> dict[str, Any]:
        return service.show(self.context, "flights", number).model_dump(exclude_defaults=True)


class Sessions:
    """The database, whose transactions do nothing."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def __call__(self) -> Any:
        return nullcontext(self.session)

    begin = __call__


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("hashes", [True, False])
@pytest.mark.parametrize("before", [None, ENDED, LOST], ids=["first", "again", "after one that was lost"])
def test_a_verification_is_stored_before_it_begins(
    world: World, before: dict[str, Any] | None, *, hashes: bool
) -> None:
    world.found.verification = before
    begun = {"status": CommandStatus.IN_PROGRESS, "hashes": hashes, "started_at_ms": NOW_MS, "beat_at_ms": NOW_MS}
    shown = world.begin(hashes=hashes)
    assert {name: shown[name] for name in ("status", "hashes", "started_at_ms")} == {
        name: begun[name] for name in ("status", "hashes", "started_at_ms")
    }
    assert world.found.verification == begun
    event = {
        "job_id": "job",
        "at_ms": NOW_MS,
        "kind": "VERIFICATION_REQUESTED",
        "actor": "ann",
        "message": "verification of checkpoint 7 was requested",
        "checkpoint_id": 7,
    }
    assert world.steps == [event, "flushed", "detached", (world.job, world.found, begun)]


def test_a_verification_that_the_verifier_refuses_is_not_stored_as_begun(world: World) -> None:
    def refuse(*_: Any) -> None:
        raise TooManyInFlightError("too many verifications are in progress")

    @contextmanager
    def transaction() -> Iterator[Any]:
        yield sessions.session
        world.steps.append("committed")

    sessions: Any = world.context.sessions
    sessions.begin = transaction
    world.begin()
    assert world.steps.pop() == "committed"
    world.found.verification = None
    world.context.verifier.submit = refuse
    with pytest.raises(TooManyInFlightError):
        world.begin()
    assert "committed" not in world.steps


def test_a_verification_in_progress_is_not_begun_again(world: World) -> None:
    world.found.verification = RUNNING
    shown = world.begin()
    assert (shown["status"], shown["started_at_ms"], shown["hashes"], shown["files"]) == ("IN_PROGRESS", 5, True, 3)
    assert (world.steps, world.found.verification) == ([], RUNNING)


@pytest.mark.parametrize(
    ("number", "columns"),
    [
        (8, {}),
        (7, {"external_path": None}),
        *((7, {"status": status}) for status in CheckpointStatus if status != "COMPLETED"),
    ],
)
def test_only_a_completed_checkpoint_in_the_store_is_verified(
    world: World, number: int, columns: dict[str, Any]
) -> None:
    for name, value in columns.items():
        setattr(world.found, name, value)
    with pytest.raises(CheckpointNotFoundError):
        world.begin(number)
    assert world.steps == []


def test_a_verification_is_shown_as_it_is_and_as_failed_after_its_last_sign_of_life(world: World) -> None:
    with pytest.raises(VerificationNotFoundError):
        world.show()
    with pytest.raises(CheckpointNotFoundError):
        world.show(8)
    world.found.verification = ENDED
    assert (world.show()["status"], world.show()["ended_at_ms"], world.show()["restorable"]) == ("COMPLETED", 9, True)
    world.found.verification = RUNNING
    assert world.show()["status"] == "IN_PROGRESS"
    world.found.verification = LOST
    lost = world.show()
    assert (lost["status"], lost["ended_at_ms"], lost["problem_count"]) == ("FAILED", NOW_MS - LOST_MS - 1, 1)
    assert lost["problems"] == ["the control plane that verified it has ended"]
    world.found.verification = {**RUNNING, "started_at_ms": 5}
    del world.found.verification["beat_at_ms"]
    assert world.show()["ended_at_ms"] == 5, "of an earlier version, which stored no signs of life"


def test_a_verification_has_its_times_by_the_host_and_its_sign_of_life_by_the_shared_clock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "now_ms", lambda: 5)
    assert world.begin()["started_at_ms"] == 5
    begun = world.found.verification or {}
    assert (begun["started_at_ms"], begun["beat_at_ms"], world.steps[0]["at_ms"]) == (5, NOW_MS, 5)
    assert world.show()["status"] == "IN_PROGRESS"
    monkeypatch.setattr(service, "shared_now_ms", lambda: NOW_MS + LOST_MS + 1)
    assert (world.show()["status"], world.show()["ended_at_ms"]) == ("FAILED", NOW_MS)
