"""Elects one leading replica and numbers its leadership.

The election uses a lock that PostgreSQL holds for a connection.

The lock alone is not enough: a leader that was stopped by a signal loses its connection, another replica is elected,
and the first leader continues where it was. So each leader begins an epoch, and each of its transactions checks that
the epoch still lasts, and keeps it from ending before the transaction does.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.orm import Session

from keyscale.db.repositories import events, job_signs, leaders
from keyscale.units import duration_text

from ..database_clock import shared_now_ms
from ..errors import LeadershipLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Engine
    from sqlalchemy.orm import sessionmaker

    from keyscale.db.repositories.job_signs import JobSign

_LEADER_LOCK = 0x6C656164
IDLE_TIMEOUT_S = 15
"""PostgreSQL ends the connection of a leader that has been silent for this long; then another replica can lead."""
ABSENCE_MS_MIN = 30_000
"""The shortest time without a leader or database that becomes an event: replicas take over within seconds."""


class Candidacy:
    """A replica's connection for the election.

    On it the replica asks for the lock, and holds the lock while it leads.

    The connection does not come from a pool: when it is closed, after any error, PostgreSQL releases the lock.

    Args:
        engine: The database.
        url: Where this replica can be reached.
    """

    def __init__(self, engine: Engine, url: str) -> None:
        self._url = url
        self._connection = engine.connect()
        self._connection.detach()
        self._connection.execute(text(f"SET idle_session_timeout = '{IDLE_TIMEOUT_S}s'"))
        self._connection.commit()

    def stand(self, database_away_ms: int | None = None) -> int | None:
        """Asks for the lock; with it, begins an epoch and returns it.

        Returns None if another replica leads. The new leader records as an event that no replica has led for a while.

        Do not call it again once it has returned an epoch.

        Args:
            database_away_ms: How long the database has not answered, if it did not.
        """
        with Session(self._connection) as session, session.begin():
            if not session.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LEADER_LOCK}):
                return None
            before = leaders.read(session)
            epoch = leaders.begin_epoch(session, self._url)
            if database_away_ms is not None and database_away_ms >= ABSENCE_MS_MIN:
                _record(session, "DATABASE_AWAY", f"the database did not answer for {duration_text(database_away_ms)}")
            elif before is not None and before.silent_ms >= ABSENCE_MS_MIN:
                _record(session, "NO_LEADER", f"no replica led for {duration_text(before.silent_ms)}")
            return epoch

    def beat(self, epoch: int) -> Sequence[JobSign]:
        """Notes that this replica leads; returns the jobs to look after.

        Raises:
            LeadershipLostError: Another replica leads.
        """
        with Session(self._connection) as session, session.begin():
            if not leaders.beat(session, epoch):
                raise LeadershipLostError(f"epoch {epoch} is over")
            return job_signs.to_reconcile(session)

    def close(self) -> None:
        self._connection.close()


def _record(session: Session, kind: str, message: str) -> None:
    events.record(session, job_id=None, at_ms=shared_now_ms(), kind=kind, message=message)


class Leadership:
    """A leader's right to write, which ends with its epoch.

    Args:
        sessions: The database.
        epoch: The number of its epoch.
    """

    def __init__(self, sessions: sessionmaker[Session], epoch: int) -> None:
        self._sessions = sessions
        self.epoch = epoch

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Gives a transaction during which no other replica becomes the leader.

        Raises:
            LeadershipLostError: Another replica leads.
        """
        with self._sessions.begin() as session:
            if not leaders.share_epoch(session, self.epoch):
                raise LeadershipLostError(f"epoch {self.epoch} is over")
            yield session

    def require(self) -> None:
        """Checks that this replica leads, before effects outside the database.

        Raises:
            LeadershipLostError: Another replica leads.
        """
        with self.transaction():
            pass
