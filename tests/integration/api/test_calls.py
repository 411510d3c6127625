"""A driver that waits is called when a command, new settings or the end of its attempt waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.tokens import attempt_token, token_sha256
from keyscale.api.control_plane import calls
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause, CreateAttempt, EndAttempt, ShowStatus
from keyscale.db.repositories import jobs
from keyscale.jobs.protocol.messages import Command, CommandResult, Heartbeat
from keyscale.jobs.runtime.control.channel import HttpControl
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.control.reporter import Reporter
from keyscale.vocabulary import DriverState, JobStatus
from tests.integration.api.test_reads import statements
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("on_socket")]


class Driver:
    """A driver of attempt 1 of a running job, which waits for a call in a thread."""

    def __init__(self, context: Context, job_id: str, url: str) -> None:
        self.context, self.job_id = context, job_id
        token = attempt_token("key", f"{job_id}:1")
        with context.sessions.begin() as session:
            transaction = self.transaction(session)
            apply(CreateAttempt(1, Cause.START), transaction)
            apply(ShowStatus(JobStatus.RUNNING), transaction)
            transaction.attempt(1).token_sha256 = token_sha256(token)
        object.__setattr__(context, "settings", replace(context.settings, own_url=url))  # which the proof names
        self.control = HttpControl(url, f"{job_id}:1", token)
        self.control.heartbeat(Heartbeat(state=DriverState.RUNNING, revision=1))
        self._thread = ThreadPoolExecutor(1)

    def transaction(self, session: Any) -> JobTransaction:
        found = jobs.lock(session, self.job_id)
        assert found is not None
        return JobTransaction(session, found)

    def wait(self, seconds: float) -> Callable[[], bool]:
        """Begins to wait; returns what returns whether the driver was called."""
        answer = self._thread.submit(self.control.wait_for_call, 1, seconds)
        wait_until(lambda: answer.done() or self.context.calls._waiters, what="the request")
        return lambda: answer.result(20)

    def close(self) -> None:
        self.control.close()
        self._thread.shutdown()


@pytest.fixture
def driver(client: httpx.Client, context: Context, job: dict[str, Any]) -> Iterator[Driver]:
    client.post("/v1/jobs/flights/start")
    driver = Driver(context, str(job["id"]), str(client.base_url).rstrip("/"))
    yield driver
    driver.close()


def test_a_driver_without_anything_to_do_waits_until_the_time_is_over(driver: Driver) -> None:
    assert driver.wait(2.5 * calls.POLL_S)() is False


@pytest.mark.parametrize("path", ["savepoint", "stop"])
def test_a_command_calls_the_driver_that_waits_for_it(client: httpx.Client, driver: Driver, path: str) -> None:
    is_called = driver.wait(15)
    assert client.post(f"/v1/jobs/flights/{path}", json={}).is_success
    assert is_called()
    assert driver.control.heartbeat(Heartbeat(state=DriverState.RUNNING, revision=1)).commands
    assert driver.wait(15)(), "a command without a result calls again"


def test_a_quiet_driver_gets_its_command_by_a_call(client: httpx.Client, driver: Driver) -> None:
    status, got = DriverStatus(), list[Command]()
    status.follows(1)
    status.enter(DriverState.RUNNING)
    reporter = Reporter(driver.control, status, got.append, lambda _: None)
    reporter.start()
    try:
        wait_until(lambda: reporter._listens and driver.context.calls._waiters, what="the wait for a call")
        assert client.post("/v1/jobs/flights/savepoint", json={}).is_success
        wait_until(lambda: got, what="the command")
        status.answer(CommandResult(command_id=got[0].id, status="FAILED"))
        wait_until(reporter._is_unwanted.is_set, what="the end of the command")
        assert len(got) == 1
    finally:
        driver.context.calls.end_all()
        reporter.close(5)


def test_new_settings_call_the_driver(client: httpx.Client, driver: Driver) -> None:
    is_called, settings = driver.wait(15), {"spec": {"checkpoints": {"interval_ms": 7000}}}
    assert client.patch("/v1/jobs/flights", json=settings, headers={"If-Match": '"1"'}).is_success
    assert is_called()


def test_the_end_of_an_attempt_calls_its_driver(driver: Driver) -> None:
    is_called = driver.wait(15)
    with driver.context.sessions.begin() as session:
        apply(EndAttempt(1), driver.transaction(session))
    assert is_called()
    assert driver.wait(15)(), "it is told at once"


def test_a_control_plane_that_ends_calls_all_drivers(driver: Driver) -> None:
    is_called = driver.wait(15)
    driver.context.calls.end_all()
    assert is_called()
    assert driver.wait(15)()


def test_a_look_is_one_statement_for_all_drivers_and_none_without_drivers(driver: Driver) -> None:
    with statements(driver.context) as sent:
        driver.wait(2.5 * calls.POLL_S)()
        wait_until(lambda: not driver.context.calls._came.is_set(), what="the last look")
    looks = [statement for statement in sent if "unnest" in statement]
    assert 1 <= len(looks) <= 4
    with statements(driver.context) as sent:
        driver.context.calls.poll()
    assert not list(sent)
