"""A control plane in a thread of the test, on a real database: nothing is reconciled, and no driver runs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uvicorn
from sqlalchemy import update

from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.leadership import Leadership
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.metrics import series
from keyscale.api.web.app import create_app, make_context
from keyscale.api.web.serve import ensure_admin_token, listen, server_config
from keyscale.client.connection import Connection
from keyscale.client.keyscale import Keyscale
from keyscale.clock import now_ms
from keyscale.db.connections import open_engine, session_factory
from keyscale.db.models import LastHeartbeat
from keyscale.db.repositories import jobs, leaders
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.vocabulary import AttemptStage
from tests.support.control_plane.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

SCRIPT = b"from keyscale import StreamEnvironment\n\nStreamEnvironment.current().execute()\n"
"""A program without operators."""


class Platform:
    """A control plane whose jobs have what tests store for them.

    Args:
        settings: Its settings, with a database that has been migrated.
    """

    def __init__(self, settings: Settings) -> None:
        self._engine = open_engine(settings.database_url or "")
        self.sessions: sessionmaker[Session] = session_factory(self._engine)
        self._settings = replace(settings, port=0)
        self.jobs: dict[str, str] = {}
        """The ids of the jobs that tests have created, by name."""
        self.token = ensure_admin_token(self._engine, settings.token_file)
        self.start()
        self.api = Keyscale(connection=self.connection)

    @property
    def url(self) -> str:
        return self._settings.control_url

    @property
    def connection(self) -> Connection:
        """How to talk to it, with its admin token."""
        return Connection(self.url, self.token)

    @property
    def context(self) -> Context:
        """Its parts, until it is stopped."""
        return self._context

    def start(self) -> None:
        """Serves, on the same port as before."""
        self._listener = listen(self._settings)
        self._listener.listen()  # so that clients need not wait until the server does
        self._settings = replace(self._settings, port=self._listener.getsockname()[1])
        self._context = make_context(self._settings)
        self._server = uvicorn.Server(server_config(create_app(self._context, reconcile=False), self._settings))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()

    def stop(self) -> None:
        """Ends all streams and connections; what is in the database stays."""
        self._context.change_feed.end_all()  # else the server would wait for the streams
        self._context.calls.end_all()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def close(self) -> None:
        """Stops for good."""
        self.api.close()
        self.stop()
        self._engine.dispose()

    def create_job(self, name: str, **labels: str) -> str:
        """Creates a job of the program without operators; returns its id."""
        artifact = self.api.upload("/v1/artifacts", filename="job.py", content=SCRIPT)
        body = {"name": name, "labels": labels, "spec": {"artifact_id": artifact["id"], "parallelism": 2}}
        self.jobs[name] = self.api.post("/v1/jobs", body)["id"]
        return self.jobs[name]

    def note_metrics(self, name: str, reports: Sequence[dict[str, Any]]) -> None:
        """Stores what a driver of a job has reported before it ended, in steps of the series up to now."""
        with self.sessions.begin() as session:
            job = jobs.lock(session, self.jobs[name])
            assert job is not None
            attempt = JobTransaction(session, job).create_attempt(job.revision, Cause.START, stage=AttemptStage.ENDED)
            attempt.reaped, attempt.totals_before = True, {"late_records": 100}
            for steps_ago, report in enumerate(reversed(reports)):
                metrics = DriverMetrics.model_validate(report)
                at_ms = now_ms() - steps_ago * series.SAMPLE_MS
                series.sample(session, attempt.job_id, metrics, attempt.totals_before, is_current=False, at_ms=at_ms)
            attempt.metrics = DriverMetrics.model_validate(reports[-1]).model_dump(mode="json")

    def lead(self) -> Leadership:
        """Makes it the leader, as which it is announced; returns the right to write."""
        self.context.announcer.announce()
        with self.sessions.begin() as session:
            return Leadership(self.sessions, leaders.begin_epoch(session, self.url))

    def beat(self) -> None:
        """Notes that each driver has reported, so that its figures count as present ones for the next ten minutes."""
        with self.sessions.begin() as session:
            session.execute(update(LastHeartbeat).values(at_ms=now_ms() + 600_000))

    def snapshots_of(self, name: str) -> Snapshots:
        """Returns what makes checkpoints of a job that never ran."""
        return Snapshots(self.sessions, self.jobs[name])


@contextmanager
def driverless_platform(settings: Settings) -> Iterator[Platform]:
    """Serves a control plane without drivers; ends it afterwards."""
    platform = Platform(settings)
    try:
        yield platform
    finally:
        platform.close()
