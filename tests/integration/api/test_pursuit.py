"""A job's steps that reach outside of the database, with a launcher and a store of the test's own."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.errors import StoreUnavailableError
from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle import steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.leadership import Candidacy, Leadership
from keyscale.api.lifecycle.pursuit import Pursuit
from keyscale.api.store_check import PublishedSavepoint
from keyscale.db.repositories import jobs
from keyscale.db.statuses import JobStatus
from keyscale.state.identifiers import CheckpointId
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.services.context import Context
    from keyscale.db.models import Attempt

PUBLISHED = PublishedSavepoint("file:///store/savepoints/end/manifest.json", CheckpointId(9))


class DeadDrivers:
    """In place of the launcher: every driver that was launched is dead, and a new one is never launched."""

    place = "here"

    def inspect(self, attempt: Attempt) -> Seen:
        return Seen(ProcessState.DEAD if attempt.number == 1 else ProcessState.STARTING)

    def clean_up(self, job_id: str, attempt: int) -> None:
        """There is nothing to delete."""


class Store:
    """In place of the store: gives one answer after the other; the last one stays."""

    def __init__(self, *answers: PublishedSavepoint | StoreUnavailableError | None) -> None:
        self.answers = list(answers)

    def find_savepoint(self, *_: str) -> PublishedSavepoint | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, StoreUnavailableError):
            raise answer
        return answer


@pytest.fixture
def stopping(context: Context, job: dict[str, Any], client: httpx.Client) -> dict[str, Any]:
    """The job, whose driver was told to stop with the savepoint `end`, and has died."""
    client.post(f"/jobs/{job['id']}/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        for step in (steps.CreateAttempt(1, steps.Cause.START), steps.ShowStatus(JobStatus.RUNNING)):
            apply(step, JobTransaction(session, found))
    assert client.post("/jobs/flights/stop", json={"operation_id": "end"}).status_code == 202
    return job


@pytest.fixture
def pursue(context: Context, stopping: dict[str, Any]) -> Callable[[Store], None]:
    """Lets a reconciler with a store take the job's steps until it has to wait."""

    def take_steps(store: Store) -> None:
        with closing(Candidacy(context.engine, "")) as candidacy:
            epoch = wait_until(candidacy.stand, what="the election")
            leadership = Leadership(context.sessions, epoch)
            pursuit = Pursuit(leadership=leadership, launcher=cast("Any", DeadDrivers()), store=cast("Any", store))
            pursuit.pursue(stopping["id"])

    return take_steps


def attempts(client: httpx.Client) -> list[int]:
    return [one["number"] for one in client.get("/jobs/flights/attempts").json()["attempts"]]


def test_while_the_store_is_away_a_savepoint_is_not_taken_for_missing(
    client: httpx.Client, pursue: Callable[[Store], None]
) -> None:
    away = StoreUnavailableError("no answer")
    for _ in range(2):
        pursue(Store(away))
        assert client.get("/operations/end").json()["status"] == "IN_PROGRESS"
        assert attempts(client) == [1], "a new driver would commit batches after the savepoint"
    pursue(Store(away, PUBLISHED))
    pursue(Store(PUBLISHED))
    operation = client.get("/operations/end").json()
    assert (operation["status"], operation["operation"]["location"]) == ("COMPLETED", PUBLISHED.location)
    assert client.get("/jobs/flights").json()["status"] == "STOPPED"
    assert attempts(client) == [1]


def test_a_savepoint_that_is_missing_is_taken_by_the_next_driver(
    client: httpx.Client, pursue: Callable[[Store], None]
) -> None:
    pursue(Store(None))
    assert client.get("/operations/end").json()["status"] == "IN_PROGRESS"
    assert attempts(client) == [2, 1]
