"""A driver that waits for work keeps asking, tells when it is warm, and leaves a warm-up for its assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.protocol.messages import AttachRequest, AttachResponse
from keyscale.jobs.runtime.control.reporter import HEARTBEAT_INTERVAL_SECONDS
from keyscale.jobs.runtime.driver.attachment import Attachment
from keyscale.jobs.runtime.errors import AttemptOverError, ControlRefusedError, ControlUnreachableError
from tests.support.drivers.assignments import assignment as new_assignment

if TYPE_CHECKING:
    from collections.abc import Sequence

ASSIGNMENT = new_assignment(
    job_id="job",
    job_name="flights",
    attempt=3,
    parallelism=2,
    max_parallelism=8,
    artifact_filename="job.py",
    artifact_sha256="0",
    store_url="file:///store",
)
WAIT = AttachResponse(decision="wait", retry_after_ms=50)
SLOW = AttachResponse(decision="wait", retry_after_ms=3000)
RUN = AttachResponse(decision="run", assignment=ASSIGNMENT)
PREVIEW = AttachResponse(decision="wait", preview=ASSIGNMENT)


class Waiting:
    """A waiting driver: its control plane gives some answers, and its warm-up is done after some of them."""

    def __init__(self, *answers: AttachResponse | Exception, warm_after: int = 99) -> None:
        self.calls: list[str] = []
        self.requests: list[AttachRequest] = []
        self._answers: Sequence[AttachResponse | Exception] = answers
        self._warm_after = warm_after
        request = AttachRequest(pid=1, host="here")
        self.attachment = Attachment(
            cast("Any", self),
            request,
            cast("Any", self),
            on_assigned=lambda: self.calls.append("assigned"),
            sleep=lambda seconds: self.calls.append(f"sleeps {seconds}"),
        )

    def attach(self, request: AttachRequest) -> AttachResponse:
        self.requests.append(request)
        answer = self._answers[len(self.requests) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    # The warm-up

    @property
    def done(self) -> bool:
        return len(self.requests) > self._warm_after

    def start(self) -> None:
        if "warms up" not in self.calls:
            self.calls.append("warms up")

    def finish(self) -> None:
        self.calls.append("finishes")

    def warm(self) -> None:
        self.calls.append("warm")


def test_a_driver_with_work_does_not_warm_up() -> None:
    waiting = Waiting(RUN)
    assert waiting.attachment.first(waiting.warm) == RUN
    assert waiting.calls == ["finishes", "assigned"]


def test_a_standby_gets_its_program_before_its_assignment() -> None:
    waiting = Waiting(PREVIEW, PREVIEW, PREVIEW, RUN, warm_after=2)
    assert waiting.attachment.first(waiting.warm) == PREVIEW
    assert waiting.calls == ["warms up"], "the script runs meanwhile"
    assert waiting.attachment.assignment(waiting.warm) == ASSIGNMENT
    assert waiting.calls == ["warms up", "sleeps 0.2", "warm", "sleeps 0.2", "finishes", "assigned"]
    assert [request.wants_preview for request in waiting.requests] == [True, False, False, False]


def test_without_a_preview_a_standby_is_ready_when_it_is_warm() -> None:
    waiting = Waiting(WAIT, WAIT, RUN, warm_after=1)
    assert waiting.attachment.first(waiting.warm) == RUN
    assert waiting.calls == ["warms up", "sleeps 0.05", "warm", "sleeps 0.05", "finishes", "assigned"]


def test_a_driver_asks_at_least_as_often_as_it_sends_heartbeats() -> None:
    waiting = Waiting(SLOW, RUN)
    waiting.attachment.first(waiting.warm)
    assert f"sleeps {HEARTBEAT_INTERVAL_SECONDS}" in waiting.calls


def test_a_driver_asks_again_if_there_is_no_answer_and_no_longer_once_it_is_refused() -> None:
    exit_ = AttachResponse(decision="exit")
    waiting = Waiting(ControlUnreachableError("away"), exit_, exit_)
    assert waiting.attachment.first(waiting.warm) is None
    assert waiting.calls == ["sleeps 0.5"]
    assert waiting.attachment.assignment(waiting.warm) is None
    for refusal in (AttemptOverError("over"), ControlRefusedError("unknown")):
        with pytest.raises(type(refusal)):
            Waiting(refusal).attachment.first(waiting.warm)
