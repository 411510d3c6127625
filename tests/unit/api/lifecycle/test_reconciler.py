"""A replica stands for election until it leads, leads until it closes or loses, and stands again after every error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from keyscale.api.errors import LeadershipLostError
from keyscale.api.lifecycle import reconciler as module
from keyscale.api.lifecycle.facts import Timeouts
from keyscale.api.lifecycle.reconciler import RESTING_ROUND_S, ROUND_S, Reconciler, ReconcilerPulse, Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY = OperationalError("SELECT", None, Exception("away"))
TIMEOUTS = Timeouts(restore_ms=5000)


class Replica:
    """A replica's reconciler, whose elections and rounds the test plays.

    Attributes:
        elections: The answers to its candidacies, one after the other: an epoch, None, or an error.
        rounds: What happens in each round as the leader; after the last one it closes.
        noted: Everything that it does, in its order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.elections: list[tuple[float, int | Exception | None]] = []
        self.rounds: list[Callable[[], object]] = []
        self.noted: list[Any] = []
        self.now_s = 0.0
        self.pulse = ReconcilerPulse()
        self.all_rest, self.quarantined = True, 3
        self.worker: dict[str, Any] = {}
        self._closing: Any = None
        monkeypatch.setattr(module, "_ELECTION_S", 0)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        for name in ("open_engine", "session_factory", "Candidacy", "Leadership", "JobWorker", "JobWorkers"):
            monkeypatch.setattr(module, name, getattr(self, name))
        self.reconciler = Reconciler(
            engine=cast("Any", SimpleNamespace(url="database")),
            launcher=cast("Any", SimpleNamespace(living=lambda: {7})),
            store=cast("Any", "store"),
            wakeup=cast("Any", self),
            pulse=self.pulse,
            url="http://first:1",
            timeouts=TIMEOUTS,
            starts_at_once=4,
        )

    def run(self) -> list[Any]:
        """Runs until it closes; returns what it did."""
        self.reconciler._run()
        return self.noted

    def open_engine(self, url: str, connections: int) -> Any:
        assert (url, connections) == ("database", 8)
        return SimpleNamespace(dispose=lambda: self.noted.append("dispose"))

    def session_factory(self, engine: Any) -> Any:
        assert engine is self.reconciler._engine
        return "sessions"

    def Candidacy(self, engine: Any, url: str) -> Any:  # noqa: N802 - in place of a class
        assert engine is self.reconciler._engine
        self.noted.append(("candidate", url))
        return SimpleNamespace(stand=self.stand, beat=self.beat, close=lambda: self.noted.append("no candidate"))

    def Leadership(self, sessions: str, epoch: int) -> Any:  # noqa: N802 - in place of a class
        assert sessions == "sessions"
        return SimpleNamespace(epoch=epoch)

    def JobWorker(self, **given: Any) -> str:  # noqa: N802 - in place of a class
        self.worker = given
        assert not given["is_closing"]()
        return "worker"

    def JobWorkers(self, worker: str, leadership: Any, timeouts: Timeouts) -> Any:  # noqa: N802 - in place of a class
        assert (worker, timeouts, leadership) == ("worker", TIMEOUTS, self.worker["leadership"])
        return self

    def stand(self, *database_away_ms: int | None) -> int | None:
        if not self.elections:
            self.reconciler._closing.set()
            return None
        self.noted.append(("stand", *database_away_ms, self.pulse.role))
        self.now_s, answer = self.elections.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def beat(self, epoch: int) -> list[str]:
        self.noted.append(("beat", epoch))
        self.rounds.pop(0)()
        if not self.rounds:
            self.reconciler._closing.set()
        return ["a job's sign"]

    def serve(self, signs: list[str], living: set[int]) -> None:
        assert (signs, living) == (["a job's sign"], {7})

    def wait(self, timeout_s: float) -> None:
        pulse = self.pulse
        self.noted.append((timeout_s, pulse.role, pulse.epoch, pulse.quarantined, pulse.beat_at_s))

    def ring(self) -> None:
        self.noted.append("ring")

    def close(self) -> None:
        assert self.worker["is_closing"]()
        self.noted.append("close")


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    return Replica(monkeypatch)


def test_a_replica_stands_by_until_it_leads_and_makes_room_before_its_last_steps_end(replica: Replica) -> None:
    replica.elections = [(1, None), (2, None), (3, 7)]
    replica.rounds = [lambda: None, lambda: setattr(replica, "all_rest", False)]
    assert replica.run() == [
        ("candidate", "http://first:1"),
        ("stand", None, "down"),
        ("stand", "standby"),
        ("stand", "standby"),
        ("beat", 7),
        (RESTING_ROUND_S, "leader", 7, 3, 3),
        ("beat", 7),
        (ROUND_S, "leader", 7, 3, 3),
        "no candidate",
        "close",
        "no candidate",
    ]
    assert (replica.pulse.role, replica.pulse.epoch) == ("down", None)
    worker = replica.worker
    assert (worker["leadership"].epoch, worker["store"], worker["timeouts"]) == (7, "store", TIMEOUTS)
    assert (worker["launcher"], worker["starts_at_once"]) == (replica.reconciler._launcher, 4)


def test_a_replica_stands_again_and_knows_how_long_the_database_was_away(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    def lose() -> None:
        raise LeadershipLostError("epoch 7 is over")

    replica.elections = [(10, AWAY), (25, AWAY), (50, 7), (60, ValueError("a defect")), (70, None)]
    replica.rounds = [lambda: None, lose]
    noted = [each for each in replica.run() if each[0] == "stand"]
    assert noted == [
        ("stand", None, "down"),
        ("stand", 0, "down"),
        ("stand", 15_000, "down"),
        ("stand", None, "down"),
        ("stand", None, "down"),
    ]
    assert [(line.levelname, line.getMessage()) for line in caplog.records if line.levelname != "INFO"] == [
        ("WARNING", "the database does not answer; trying again"),
        ("WARNING", "the database does not answer; trying again"),
        ("WARNING", "another replica leads"),
        ("ERROR", "a round failed"),
    ]


def test_a_reconciler_that_is_closed_ends_its_loop_and_its_connections(replica: Replica) -> None:
    replica.elections = [(1, 7)]
    replica.rounds = [lambda: None]
    replica.reconciler.start()
    replica.reconciler.close()
    assert replica.noted[-2:] in (["ring", "dispose"], ["no candidate", "dispose"])
    assert not replica.reconciler._thread.is_alive()


def test_a_ring_counts_for_the_next_wait_and_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup = Wakeup()
    waits: list[tuple[bool, float]] = []
    wait = wakeup._event.wait
    monkeypatch.setattr(wakeup._event, "wait", lambda timeout: waits.append((wait(0), timeout)))
    wakeup.ring()
    for seconds in (5.0, 6.0):
        wakeup.wait(seconds)
    assert waits == [(True, 5.0), (False, 6.0)]
