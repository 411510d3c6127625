"""What the reconciler has to look at wakes it at once; what is nothing new does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.tokens import token_sha256
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause, CreateAttempt, ShowStatus
from keyscale.db.models import Attempt
from keyscale.db.repositories import jobs
from keyscale.vocabulary import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

DRIVER = {"Authorization": "Bearer driver"}


@pytest.fixture
def has_rung(context: Context) -> Callable[[], bool]:
    """Says whether the reconciler has been woken since the last look."""

    def look() -> bool:
        event = context.wakeup._event
        rung = event.is_set()
        event.clear()
        return rung

    return look


@pytest.fixture
def running(client: httpx.Client, context: Context, job: dict[str, Any], has_rung: Callable[[], bool]) -> str:
    """The id of the job, which attempt 1 runs; its driver's token is `driver`."""
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        transaction = JobTransaction(session, found)
        apply(CreateAttempt(1, Cause.START), transaction)
        apply(ShowStatus(JobStatus.RUNNING), transaction)
        transaction.attempt(1).token_sha256 = token_sha256("driver")
    has_rung()
    return str(job["id"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("stop", {}),
        ("cancel", {}),
        ("rescale", {"parallelism": 4}),
    ],
)
@pytest.mark.usefixtures("running")
def test_a_request_that_is_to_be_carried_out_wakes_the_reconciler(
    client: httpx.Client, has_rung: Callable[[], bool], path: str, body: dict[str, Any]
) -> None:
    assert client.get("/v1/jobs/flights").is_success
    assert not has_rung(), "a read is nothing to carry out"
    assert client.post(f"/v1/jobs/flights/{path}", json=body).status_code == 202
    assert has_rung()


@pytest.mark.usefixtures("job")
def test_a_start_wakes_the_reconciler(client: httpx.Client, has_rung: Callable[[], bool]) -> None:
    assert not has_rung()
    client.post("/v1/jobs/flights/start")
    assert has_rung()


@pytest.mark.usefixtures("running")
def test_a_driver_wakes_the_reconciler_by_news_and_by_no_repetition(
    client: httpx.Client, has_rung: Callable[[], bool]
) -> None:
    client.post("/v1/jobs/flights/stop", json={"id": "end"})
    has_rung()
    failed = {"command_id": "end", "status": "FAILED", "failure": {"code": "X", "message": "it failed"}}
    committed = {"batch_id": 0, "at_ms": 7}
    for path, message in (
        ("attach", {"pid": 1, "host": "here"}),
        ("heartbeat", {"state": "RUNNING"}),
        ("heartbeat", {"state": "RUNNING", "first_commit": committed, "last_commit": committed}),
        ("heartbeat", {"state": "RUNNING", "results": [failed]}),
        ("heartbeat", {"state": "FAILED", "failure": failed["failure"]}),
    ):
        seen = []
        for _ in range(2):
            answer = client.post(f"/driver/{path}", json=message, headers=DRIVER)
            assert answer.status_code == 200, answer.text
            seen.append(has_rung())
        assert seen == [True, False], (path, message)


def test_the_first_moment_stays_however_often_a_driver_says_it(
    client: httpx.Client, context: Context, running: str
) -> None:
    def moments() -> tuple[int | None, ...]:
        with context.sessions() as session:
            attempt = session.get_one(Attempt, (running, 1))
            return attempt.attached_at_ms, attempt.assigned_at_ms, attempt.running_at_ms

    for path, message in (("attach", {"pid": 1, "host": "here"}), ("heartbeat", {"state": "RUNNING"})):
        client.post(f"/driver/{path}", json=message, headers=DRIVER)
    with context.sessions.begin() as session:
        attempt = session.get_one(Attempt, (running, 1))
        attempt.attached_at_ms, attempt.assigned_at_ms, attempt.running_at_ms = 1, 2, 3
    for path, message in (("attach", {"pid": 1, "host": "here"}), ("heartbeat", {"state": "RUNNING"})):
        assert client.post(f"/driver/{path}", json=message, headers=DRIVER).status_code == 200
    assert moments() == (1, 2, 3)
