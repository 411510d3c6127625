"""One replica leads: by a lock that an error gives back, and with an epoch that each of its writes checks."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from keyscale.api.errors import LeadershipLostError, StoreUnavailableError
from keyscale.api.jobs import start_waits
from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.job_worker import JobWorker
from keyscale.api.lifecycle.leadership import Candidacy, Leadership
from keyscale.api.lifecycle.reconciler import Reconciler, ReconcilerPulse, Wakeup
from keyscale.db.models import Event
from keyscale.db.repositories import job_signs, jobs, leaders, replicas, revisions
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from sqlalchemy.orm import Session

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.either_database


@pytest.fixture
def pulse() -> ReconcilerPulse:
    return ReconcilerPulse()


@pytest.fixture
def reconciler(context: Context, pulse: ReconcilerPulse) -> Iterator[Reconciler]:
    """A reconciler that looks after no job that has a driver."""
    started = Reconciler(
        engine=context.engine,
        launcher=context.launcher,
        store=context.store,
        wakeup=Wakeup(),
        pulse=pulse,
        url="http://first:1",
    )
    started.start()
    yield started
    started.close()


@pytest.mark.real
def test_there_is_one_leader_until_its_connection_is_closed(context: Context) -> None:
    with closing(Candidacy(context.engine, "http://second:1")) as second:
        with closing(Candidacy(context.engine, "http://first:1")) as first:
            assert first.stand() == 1
            assert second.stand() is None
        assert wait_until(second.stand, what="the server's notice that the connection is gone") == 2


@pytest.mark.parametrize(
    ("silent_ms", "database_away_ms", "kinds"),
    [
        (31_000, None, ["NO_LEADER"]),
        (29_000, None, []),
        (31_000, 31_000, ["DATABASE_AWAY"]),
        (1_000, 1_000, []),
    ],
)
def test_a_new_leader_records_what_was_away_for_long(
    context: Context, silent_ms: int, database_away_ms: int | None, kinds: list[str]
) -> None:
    with closing(Candidacy(context.engine, "http://first:1")) as first:
        first.stand()
    with context.sessions.begin() as session:
        assert events_of(session) == []  # no replica had ever led
        session.execute(text("UPDATE leader SET beat_at_ms = beat_at_ms - :ms"), {"ms": silent_ms})
    with closing(Candidacy(context.engine, "http://second:1")) as second:
        wait_until(lambda: second.stand(database_away_ms), what="the second election")
    with context.sessions() as session:
        assert events_of(session) == kinds


def events_of(session: Session) -> list[str]:
    """Returns the kinds of the events without a job."""
    return [each.kind for each in session.query(Event).filter_by(job_id=None)]


@pytest.mark.real
@pytest.mark.usefixtures("reconciler")
def test_a_query_that_fails_does_not_lock_a_replica_out_of_leadership(
    context: Context, pulse: ReconcilerPulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: pulse.role == "leader", what="the first election")
    failed = threading.Event()

    def look(session: Any) -> Any:
        monkeypatch.undo()
        failed.set()
        session.execute(text("SELECT nonsense"))

    monkeypatch.setattr(job_signs, "to_reconcile", look)
    assert failed.wait(10)
    with ExitStack() as requests:  # they take every connection that the pool has free
        for _ in range(10):
            requests.enter_context(context.engine.connect())
        wait_until(lambda: current_epoch(context) == 2, what="the next election")


def current_epoch(context: Context) -> int:
    with context.sessions() as session:
        seen = leaders.read(session)
    return seen.epoch if seen else 0


@pytest.mark.real
def test_health_names_the_leader_or_says_that_a_leader_is_missing(
    context: Context, client: httpx.Client, reconciler: Reconciler, pulse: ReconcilerPulse
) -> None:
    wait_until(lambda: pulse.role == "leader", what="the election")
    context.pulse.beat("standby")  # this replica's own reconciler
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["leader"]) == (200, {"url": "http://first:1", "epoch": 1})
    reconciler.close()
    with context.sessions.begin() as session:
        session.execute(text("UPDATE leader SET beat_at_ms = beat_at_ms - 11000"))
    context.pulse.beat("standby")
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["code"], answer.json()["leader"]) == (503, "LEADER_MISSING", None)
    assert answer.headers["Retry-After"]


def test_all_replicas_are_listed_and_the_leader_is_marked(context: Context, client: httpx.Client) -> None:
    with context.sessions.begin() as session:
        for name in ("first", "second", "third"):
            replicas.announce(session, name, f"http://{name}:1")
        leaders.begin_epoch(session, "http://second:1")
        session.execute(text("UPDATE replicas SET seen_at_ms = seen_at_ms - 31000 WHERE id = 'third'"))

    def listed() -> list[tuple[str, bool, bool]]:
        found = client.get("/v1/replicas").json()["replicas"]
        return [(each["url"], each["is_alive"], each["leads_since_ms"] is not None) for each in found]

    assert listed() == [
        ("http://first:1", True, False),
        ("http://second:1", True, True),
        ("http://third:1", False, False),
    ]
    with context.sessions.begin() as session:
        session.execute(text("UPDATE leader SET beat_at_ms = beat_at_ms - 11000"))
    assert [leads for _, _, leads in listed()] == [False, False, False]


def test_a_leader_that_comes_back_after_another_was_elected_writes_nothing(
    context: Context, job: dict[str, Any], client: httpx.Client
) -> None:
    client.post(f"/v1/jobs/{job['id']}/start")
    with closing(Candidacy(context.engine, "http://first:1")) as first:
        stopped = Leadership(context.sessions, first.stand() or 0)
    with closing(Candidacy(context.engine, "http://second:1")) as second:
        wait_until(second.stand, what="the second election")
        worker = JobWorker(leadership=stopped, launcher=cast("Any", None), store=context.store)
        with pytest.raises(LeadershipLostError):
            worker.advance(job["id"])
        with pytest.raises(LeadershipLostError):
            stopped.require()
    assert client.get(f"/v1/jobs/{job['id']}/attempts").json()["attempts"] == []


@pytest.mark.real
def test_no_epoch_begins_while_a_leader_writes(context: Context) -> None:
    with closing(Candidacy(context.engine, "http://first:1")) as first:
        leadership = Leadership(context.sessions, first.stand() or 0)
        with leadership.transaction():
            assert first.beat(leadership.epoch) == []  # the leader's own beat does not wait
            with context.sessions() as other:
                other.execute(text("SET lock_timeout = '200ms'"))
                with pytest.raises(OperationalError, match="lock timeout"):
                    leaders.begin_epoch(other, "http://second:1")
                other.rollback()
        with context.sessions.begin() as other:
            assert leaders.begin_epoch(other, "http://second:1") == 2
        with pytest.raises(LeadershipLostError):
            first.beat(leadership.epoch)


class HeldDrivers:
    """In place of the launcher: driver 1 of one job takes as long to start as the test wants; no other one does."""

    place = "here"

    def __init__(self, slow_job: str) -> None:
        self.slow_job = slow_job
        self.launched: list[str] = []
        self.is_held = threading.Event()
        self.go_on = threading.Event()

    def inspect(self, attempt: Any) -> Seen:
        launched = attempt.launched_on is not None
        return Seen(ProcessState.STARTING if launched else ProcessState.UNLAUNCHED)

    def living(self) -> frozenset[int]:
        return frozenset()

    def prepare(self, job_id: str, attempt: int) -> str:
        return f"{job_id}-{attempt}"

    def launch(self, job: Any, *_: Any) -> None:
        if job.id == self.slow_job:
            self.is_held.set()
            assert self.go_on.wait(60)
        self.launched.append(job.id)


@pytest.fixture
def two_jobs(client: httpx.Client, job: dict[str, Any]) -> list[str]:
    """Two started jobs."""
    body = {"name": "other", "spec": {"artifact_id": job["spec"]["artifact_id"]}}
    ids = [job["id"], client.post("/v1/jobs", json=body).json()["id"]]
    for job_id in ids:
        client.post(f"/v1/jobs/{job_id}/start")
    return ids


@pytest.mark.real
def test_a_launch_that_takes_long_holds_no_other_job_up(context: Context, two_jobs: list[str]) -> None:
    drivers = HeldDrivers(slow_job=min(two_jobs))
    running = Reconciler(
        engine=context.engine,
        launcher=cast("Any", drivers),
        store=context.store,
        wakeup=Wakeup(),
        pulse=ReconcilerPulse(),
    )
    running.start()
    try:
        assert drivers.is_held.wait(30)
        wait_until(lambda: drivers.launched == [max(two_jobs)], what="the other job's launch")
    finally:
        drivers.go_on.set()
        running.close()


@pytest.mark.real
def test_a_job_whose_steps_fail_is_quarantined_with_an_event_and_other_jobs_go_on(
    context: Context, two_jobs: list[str], client: httpx.Client
) -> None:
    broken, sound = sorted(two_jobs)
    with context.sessions.begin() as session:
        found = jobs.lock(session, broken)
        assert found is not None
        revision = revisions.current(session, found)
        given = revision.spec  # an older version may have let it in
        revision.spec = {**given, "restart": {"type": "fixed-delay", "delay_ms": "soon"}}
    drivers = HeldDrivers(slow_job="")
    running = Reconciler(
        engine=context.engine,
        launcher=cast("Any", drivers),
        store=context.store,
        wakeup=Wakeup(),
        pulse=ReconcilerPulse(),
    )

    def kinds() -> list[str]:
        return [one["kind"] for one in client.get(f"/v1/jobs/{broken}/events").json()["events"]]

    running.start()
    try:
        wait_until(lambda: drivers.launched == [sound], what="the sound job's launch")
        wait_until(lambda: "JOB_SET_ASIDE" in kinds(), what="the event")
        with context.sessions.begin() as session:
            found = jobs.lock(session, broken)
            assert found is not None
            revisions.current(session, found).spec = given
        wait_until(lambda: "JOB_TAKEN_UP" in kinds(), what="the next try")
        assert sorted(drivers.launched) == [broken, sound]
        assert kinds().count("JOB_SET_ASIDE") == 1
    finally:
        running.close()


@pytest.mark.real
def test_a_job_that_cannot_start_while_the_store_is_away_says_so(
    context: Context, two_jobs: list[str], client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise StoreUnavailableError("the bucket does not answer")

    drivers = HeldDrivers(slow_job="")
    monkeypatch.setattr(drivers, "launch", refuse)
    monkeypatch.setattr(start_waits, "_USUAL_START_MS", 0)
    running = Reconciler(
        engine=context.engine,
        launcher=cast("Any", drivers),
        store=context.store,
        wakeup=Wakeup(),
        pulse=ReconcilerPulse(),
    )

    def is_told() -> bool:
        status = client.get(f"/v1/jobs/{two_jobs[0]}").json()["status"]
        return any("STORE_UNAVAILABLE" in each["message"] for each in status["conditions"])

    running.start()
    try:
        wait_until(is_told, what="the condition")
    finally:
        running.close()


@pytest.mark.real
def test_a_query_of_a_job_that_fails_costs_no_leadership(
    context: Context, two_jobs: list[str], client: httpx.Client
) -> None:
    """Even an error of SQL, which the database reports, is the job's alone."""
    broken, sound = sorted(two_jobs)

    def spoil(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        is_insert = statement.startswith("INSERT INTO attempts") and parameters.get("job_id") == broken
        return ("SELECT nonsense", {}) if is_insert else (statement, parameters)

    drivers = HeldDrivers(slow_job="")
    pulse = ReconcilerPulse()
    running = Reconciler(
        engine=context.engine, launcher=cast("Any", drivers), store=context.store, wakeup=Wakeup(), pulse=pulse
    )
    event.listen(running._engine, "before_cursor_execute", spoil, retval=True)
    running.start()
    try:
        wait_until(lambda: drivers.launched == [sound], what="the sound job's launch")
        wait_until(
            lambda: any(one["kind"] == "JOB_SET_ASIDE" for one in client.get("/v1/events").json()["events"]),
            what="the event",
        )
        assert current_epoch(context) == 1
    finally:
        running.close()
