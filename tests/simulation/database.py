"""The real PostgreSQL of the histories with a control plane: one database, emptied between two histories."""

from __future__ import annotations

import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event, text

from keyscale.api.libraries.contents import ArtifactContents
from keyscale.db.base import Base
from keyscale.db.connections import open_engine, session_factory
from keyscale.db.models import Artifact
from keyscale.vocabulary import ArtifactKind
from tests.simulation.world import ProcessEndedError
from tests.support.servers.postgres import create_database
from tests.support.servers.shared_postgres import SharedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.world import World

ARTIFACT = "a" * 32
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - no power is cut here
_ORDERED = ("ORDER BY", "LIMIT", "DISTINCT", "UNION", "count(", "max(")
"""A statement with one of these has an order, or one row, or no room for an order."""
_KEPT = {"leader", "artifacts", "artifact_chunks", "replica_key"}


class Database:
    """A migrated database, on which one world after the other works.

    Transactions of a process that is dead do not begin and do not commit. Within a transaction no task waits, so that
    the one thread of the simulation never waits for a lock.

    Args:
        url: Its URL.
    """

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.sessions = session_factory(self.engine)
        self.world: World | None = None
        self.on_commit: Callable[[], None] = _nothing
        """Looks at a commit that is about to be made."""
        self._open = set[Connection]()
        event.listen(self.engine, "begin", self._begin)
        event.listen(self.engine, "commit", self._commit)
        event.listen(self.engine, "rollback", self._end)
        emptied = [table.name for table in reversed(Base.metadata.sorted_tables) if table.name not in _KEPT]
        self._delete = ";".join(f'DELETE FROM "{name}"' for name in emptied)  # noqa: S608 - names of our own tables
        self._add_artifact()

    def begin_history(self, world: World | None) -> None:
        """Empties the database, for a world."""
        self.world = None
        with self.sessions.begin() as session:
            session.execute(text(self._delete))
        self._open.clear()
        self.world = world

    @contextmanager
    def shuffled(self) -> Iterator[None]:
        """Returns rows in a random order where a statement asks for none, as PostgreSQL may after a vacuum."""
        event.listen(self.engine, "before_cursor_execute", _shuffle, retval=True)
        try:
            yield
        finally:
            event.remove(self.engine, "before_cursor_execute", _shuffle)

    def close(self) -> None:
        self.world = None
        self.engine.dispose()

    @property
    def has_transaction(self) -> bool:
        """Whether a process of the world is within a transaction."""
        return bool(self._open)

    def _begin(self, connection: Connection) -> None:
        self._require_alive()
        self._open.add(connection)

    def _commit(self, connection: Connection) -> None:
        if self.world is not None:
            try:
                self.world.moment("database.committing")
            except ProcessEndedError:
                self.world.reach("a control plane died in a transaction")
                raise
            self._require_alive()
            self.on_commit()
        self._open.discard(connection)

    def _end(self, connection: Connection) -> None:
        self._open.discard(connection)

    def _require_alive(self) -> None:
        if self.world is not None and (self.world.is_over or not self.world.process.is_alive):
            raise ProcessEndedError

    def _add_artifact(self) -> None:
        with self.sessions.begin() as session:
            if session.get(Artifact, ARTIFACT) is None:
                session.add(
                    Artifact(
                        id=ARTIFACT,
                        name="job.py",
                        version=1,
                        filename="job.py",
                        kind=ArtifactKind.PYTHON,
                        sha256="0" * 64,
                        size_bytes=1,
                        created_at_ms=0,
                        uploaded_by="simulation",
                        contents=ArtifactContents().model_dump(mode="json"),
                    )
                )


def _nothing() -> None:
    return


def _shuffle(*given: Any) -> tuple[str, Any]:
    _connection, _cursor, statement, parameters, _context, _many = given
    if statement.startswith("SELECT") and not any(word in statement for word in _ORDERED):
        head, lock, tail = statement.partition(" FOR ")
        statement = f"{head} ORDER BY random(){lock}{tail}"
    return statement, parameters


@contextmanager
def own_database() -> Iterator[Database]:
    """Starts a PostgreSQL for the histories of a command."""
    with tempfile.TemporaryDirectory(prefix="keyscale-sim-pg-", dir=MEMORY, ignore_cleanup_errors=True) as directory:
        server = SharedPostgres(Path(directory))
        try:
            with closing(Database(create_database(server.url(), "simulation", server.migrated()))) as database:
                yield database
        finally:
            server.stop()
