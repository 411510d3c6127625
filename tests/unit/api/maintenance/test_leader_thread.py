from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy.exc import OperationalError

from keyscale.api.errors import LeadershipLostError
from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.maintenance.leader_thread import LeaderThread

if TYPE_CHECKING:
    from keyscale.api.lifecycle.leadership import Leadership

SECONDS = 30.0
SOON_S = 0.001


class Work:
    """Fails or answers as it is told, one call after the other; then it has nothing to do."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        self._outcomes = list(outcomes)
        self.calls = 0
        self.is_done = threading.Event()

    def __call__(self, leadership: Leadership) -> bool:  # noqa: ARG002 - the signature of all work
        self.calls += 1
        if not self._outcomes:
            self.is_done.set()
            return False
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Thread(LeaderThread):
    def __init__(self, work: Work, pulse: ReconcilerPulse) -> None:
        super().__init__("test", SOON_S, sessions=cast("Any", None), pulse=pulse)
        self._work = work
        self.rests = 0

    def rest(self) -> None:
        self.rests += 1

    def work(self, leadership: Leadership) -> bool:
        return self._work(leadership)


def test_it_goes_on_after_errors_and_after_another_replica_has_led() -> None:
    lost = LeadershipLostError("another replica leads")
    away = OperationalError("SELECT 1", {}, Exception("away"))
    work = Work(away, lost, RecursionError("a defect"), ValueError("another one"), True)
    thread = Thread(work, ReconcilerPulse("leader", epoch=1))
    thread.start()
    assert work.is_done.wait(SECONDS)
    thread.close()
    assert thread.is_closing


def test_a_replica_that_does_not_lead_does_not_work() -> None:
    pulse, work = ReconcilerPulse("standby"), Work()
    thread = Thread(work, pulse)
    thread.start()
    assert not work.is_done.wait(0.2)
    pulse.beat("leader", 1)
    assert work.is_done.wait(SECONDS)
    thread.close()


class Rounds:
    """Lets a thread make some rounds, without a pause."""

    def __init__(self, count: int) -> None:
        self.left = count

    def wait(self, seconds: float) -> bool:
        assert seconds == SOON_S
        self.left -= 1
        return self.left < 0

    def is_set(self) -> bool:
        return False


def rounds(work: Work, pulse: ReconcilerPulse, count: int) -> tuple[int, int]:
    """Returns how often a thread has worked and rested in some rounds."""
    thread = Thread(work, pulse)
    thread._closing = cast("Any", Rounds(count))
    thread._run()
    return work.calls, thread.rests


def test_a_round_lasts_as_long_as_there_is_work_and_a_replica_rests_while_another_one_leads() -> None:
    leader = ReconcilerPulse("leader", epoch=1)
    assert rounds(Work(True, True), leader, 1) == (3, 0)
    assert rounds(Work(), leader, 2) == (2, 0)
    assert rounds(Work(), ReconcilerPulse("standby"), 2) == (0, 2)
    assert rounds(Losing(leader), leader, 1) == (1, 1)


class Losing(Work):
    """Work during which another replica begins to lead."""

    def __init__(self, pulse: ReconcilerPulse) -> None:
        super().__init__(True, True)
        self._pulse = pulse

    def __call__(self, leadership: Leadership) -> bool:
        assert leadership.epoch == self._pulse.epoch == 1
        self._pulse.epoch = None
        return super().__call__(leadership)
