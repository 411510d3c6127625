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
