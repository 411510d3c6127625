"""Replicas whose clocks differ by minutes agree on what has expired, who was heard, and what goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.access.tokens import token_sha256
from keyscale.api.database_clock import AGREES_MS, follow_database_clock, shared_now_ms
from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.decision import next_step
from keyscale.api.lifecycle.fact_reader import FactReader
from keyscale.api.lifecycle.facts import Timeouts
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause, CreateAttempt, MarkReaped, ReplaceAttempt, ShowStatus
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Job
from keyscale.db.repositories import checkpoints, revisions
from keyscale.db.repositories.database_time import database_now_ms
from keyscale.vocabulary import AttemptStage, JobStatus, Role
from tests.integration.api.conftest import add_token
from tests.support.control_plane.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

MINUTES = 5
HOST_NS = time.time_ns


@pytest.fixture
def on_host(context: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Goes on as a replica whose clock is some minutes ahead; the database's clock stays."""

    def go_on(minutes: int) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: HOST_NS() + minutes * 60 * 1_000_000_000)
        with context.sessions() as session:
            follow_database_clock(session)

    yield go_on
    go_on(0)


@pytest.mark.parametrize("minutes", [-MINUTES, MINUTES])
def test_a_clock_that_differs_follows_the_databases(
    context: Context, on_host: Callable[[int], None], minutes: int
) -> None:
    on_host(minutes)
    with context.sessions() as session:
        database_ms = database_now_ms(session)
    assert abs(shared_now_ms() - database_ms) < AGREES_MS
    assert abs(now_ms() - database_ms) > 60_000
    on_host(0)
    assert shared_now_ms() - now_ms() in {-1, 0, 1}, "a clock that agrees is used as it is"


@pytest.mark.parametrize(("here", "there"), [(0, MINUTES), (MINUTES, 0), (-MINUTES, MINUTES)])
def test_a_token_expires_everywhere_at_once(
    client: httpx.Client, context: Context, on_host: Callable[[int], None], here: int, there: int
) -> None:
    on_host(here)
    made = client.post("/v1/tokens", json={"name": "short", "role": "VIEWER", "lifetime_ms": 60_000}).json()
    with context.sessions.begin() as session:
        add_token(session, "over", Role.VIEWER, expires_at_ms=shared_now_ms() - 10_000)
    on_host(there)
    for token, status in ((made["token"], 200), ("over", 401)):
        answer = client.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("skew", [(0, MINUTES), (MINUTES, 0), (0, -MINUTES)])
def test_a_driver_that_one_replica_has_heard_is_heard_for_all(
    client: httpx.Client,
    context: Context,
    job: dict[str, Any],
    on_host: Callable[[int], None],
    skew: tuple[int, int],
) -> None:
    here, there = skew
    with context.sessions.begin() as session:
        session.add(
            Attempt(
                job_id=job["id"],
                number=1,
                stage=AttemptStage.ACTIVE,
                cause="start",
                parallelism=2,
                revision=1,
                token_sha256=token_sha256("driver"),
                created_at_ms=1,
                assigned_at_ms=1,
            )
        )
    on_host(here)
    beat = {"state": "RUNNING", "restored_at_ms": 1, "metrics": {"batches": 1, "processed_records_per_second": 12.5}}
    answer = client.post("/driver/heartbeat", json=beat, headers={"Authorization": "Bearer driver"})
    assert answer.status_code == 200, answer.text
    on_host(there)
    assert client.get("/v1/jobs/flights").json()["metrics"]["processed_rate"] == 12.5
    [shown] = client.get("/v1/jobs").json()["jobs"]
    assert shown["metrics"]["processed_rate"] == 12.5


class NoDriver:
    """In place of the launcher: the driver is dead."""

    def inspect(self, _: Attempt) -> Seen:
        return Seen(ProcessState.DEAD)


@pytest.mark.parametrize("restart", [None, {"type": "fixed-delay", "attempts": 3, "delay_ms": 200_000}])
def test_a_job_waits_for_its_next_start_but_not_longer_because_the_clock_was_set_back(
    client: httpx.Client,
    context: Context,
    job: dict[str, Any],
    on_host: Callable[[int], None],
    restart: dict[str, Any] | None,
) -> None:
    pause_ms = 30_000 if restart is None else restart["delay_ms"]
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = session.get_one(Job, job["id"])
        revision = revisions.current(session, found)
        revision.spec = {**revision.spec, "restart": restart}
        transaction = JobTransaction(session, found)
        attempt = transaction.create_attempt(1, Cause.START)
        apply(ReplaceAttempt(attempt.number, {"code": "DRIVER_LOST", "message": "x"}, 2, pause_ms), transaction)
        apply(ShowStatus(JobStatus.RESTARTING), transaction)
        apply(MarkReaped(attempt.number), transaction)
    reader = FactReader(cast("Any", NoDriver()), Stopwatch(), Timeouts())
    for minutes, step in ((0, None), (-MINUTES, CreateAttempt(1, Cause.RECOVER))):
        on_host(minutes)
        with context.sessions.begin() as session:
            facts = reader.read(session, session.get_one(Job, job["id"]))
        assert (0 < facts.start_in_ms <= pause_ms) is (step is None)
        assert next_step(facts) == step


def test_a_verification_that_another_replica_makes_goes_on(
    client: httpx.Client, context: Context, job: dict[str, Any], on_host: Callable[[int], None]
) -> None:
    snapshots = Snapshots(context.sessions, job["id"])
    snapshots.take(1, {f"{snapshots.layout.shared}a": b"a"})
    on_host(-MINUTES)
    begun = {"status": "IN_PROGRESS", "hashes": True, "started_at_ms": now_ms(), "beat_at_ms": shared_now_ms()}
    with context.sessions.begin() as session:
        checkpoints.note_verification(session, job["id"], 1, begun)
    on_host(MINUTES)
    assert client.get("/v1/jobs/flights/checkpoints/1/verification").json()["status"] == "IN_PROGRESS"
