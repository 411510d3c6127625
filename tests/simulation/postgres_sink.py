"""The product's own sink of PostgreSQL, on a server in memory whose every effect takes time and may be the last one.

A process that dies takes its sessions with it. The sessions of a process that sleeps stay open, with their locks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from psycopg.errors import SerializationFailure

from keyscale.jobs.operators.failures import CarriedFailure, typed_failure
from keyscale.jobs.sinks import postgres_connection, postgres_copy, postgres_moves
from keyscale.jobs.sinks.postgres import PostgresSink
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from tests.simulation.commit_faults import LATE_SECONDS, UNANSWERED_SECONDS, Commit, CommitFaults
from tests.simulation.file_sink import AWAY_SECONDS, EFFECT_SECONDS
from tests.simulation.own_mapping import OwnMapping
from tests.support.sinks.file_system import ModelSession, TableFrame
from tests.support.sinks.postgres_server import MARKERS, Server, Session, Table, gone

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from keyscale.jobs.sinks.sink import SinkContext
    from tests.simulation.world import Process, World

TARGET = "rows"
COLUMNS = ("key", "number", "count", "chain")
BY_BATCH: dict[str, Any] = {"batch_column": "batch"}
BY_KEY: dict[str, Any] = {"keys": ("key", "number", "count")}
"""The two ways in which the sink can go back: it deletes the rows of later batches, or writes rows over others."""
WAIT_SECONDS_MAX = 20.0
"""A driver must not wait longer for a transaction of an older attempt, whose driver may sleep for ever."""


@dataclass(slots=True)
class PostgresHost:
    """The server, as a client in any process meets it."""

    model: PostgresSinkModel

    def act(self) -> None:
        """Comes before each effect."""
        world, process = self.model.world, self.model.world.process
        world.moment("sink.effect.before")
        world.sleep(EFFECT_SECONDS)
        if self.model.is_away or process.host.is_cut_off:
            world.sleep(AWAY_SECONDS)
            raise gone()

    def now(self) -> float:
        return self.model.world.now

    def wait(self, seconds: float) -> None:
        self.model.world.sleep(seconds)

    def waited(self, session: Session, holder: Session, seconds: float) -> None:
        """Notes a session that waits too long for one of an older attempt."""
        attempt, older = self.model.attempts.get(session, 0), self.model.attempts.get(holder, 0)
        if older < attempt:
            self.model.world.reach("a sink waited for a transaction of an older attempt")
            if seconds > WAIT_SECONDS_MAX:
                self.model.waits.add((attempt, older))

    def committed(self) -> None:
        """Notes the batch that has become visible, if one has."""
        model, tables = self.model, self.model.server.tables
        markers = tables[MARKERS].rows if MARKERS in tables else []
        batch_id = max((row["batch_id"] for row in markers), default=-1)
        if batch_id > model.last_batch_id:
            model.on_publish(batch_id)
        model.last_batch_id = batch_id

    def ended(self, session: Session) -> None:
        if session.changes:
            self.model.world.reach("a new driver ended a transaction of an older one")


class PlayedConnection(Session):
    """A session whose commits may fail."""

    def __init__(self, model: PostgresSinkModel, name: str) -> None:
        super().__init__(model.server, name)
        self._model = model

    def commit(self) -> None:
        model, world = self._model, self._model.world
        if not self.changes:
            super().commit()
            return
        match model.faults.draw(world):
            case Commit.WELL:
                super().commit()
            case Commit.REFUSED:
                self.close()
                raise SerializationFailure
            case Commit.LOST:
                self.close()
                raise gone()
            case Commit.UNANSWERED:
                super().commit()
                world.sleep(UNANSWERED_SECONDS)
                self.close()
                raise gone()
            case Commit.LATE:
                self.act()
                late = self.left_alone()
                world.after(world.chance.choice(LATE_SECONDS), late.apply)
                world.sleep(UNANSWERED_SECONDS)
                raise gone()


@dataclass(slots=True)
class PostgresSinkModel:
    """A table that readers look at.

    Attributes:
        world: The world.
        options: Of the sink: how it takes rows back.
        on_publish: Called with each batch that readers see.
        faults: Of the server's commits.
        is_away: Whether the server answers nobody.
        waits: The attempts that waited too long, each with the older attempt that it waited for.
        attempts: The attempt of each session.
        last_batch_id: The last batch that readers see.
    """

    world: World
    options: dict[str, Any]
    on_publish: Callable[[int], None]
    faults: CommitFaults = field(default_factory=CommitFaults)
    is_away: bool = False
    waits: set[tuple[int, int]] = field(default_factory=set)
    attempts: dict[Session, int] = field(default_factory=dict)
    last_batch_id: int = -1
    server: Server = field(init=False)
    _tasks: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.server = Server(PostgresHost(self), {TARGET: Table((*COLUMNS, "batch"))})

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """All that a reader sees."""
        return [tuple(row[name] for name in COLUMNS) for row in self.server.tables[TARGET].rows]

    @property
    def staged(self) -> list[str]:
        """The staging tables with rows."""
        return [name for name, table in self.server.tables.items() if name not in {TARGET, MARKERS} and table.rows]

    def wrong(self) -> list[str]:
        """Returns what else is wrong: attempts that had to wait for older ones."""
        return [f"attempt {newer} waited for a transaction of attempt {older}" for newer, older in sorted(self.waits)]

    def connected(self, _url: str, **settings: str) -> PlayedConnection:
        """Opens a session of the process that runs; the session ends with the process."""
        self.server.host.act()
        process = self.world.process
        session = PlayedConnection(self, settings.get("application_name", ""))
        self.server.sessions.append(session)
        self.attempts[session] = process.resources["attempt"]
        process.at_death.append(lambda: self._lose(session, process))
        return session

    def sink_of(self, process: Process) -> PlayedPostgresSink:
        """Returns the sink of a process."""
        session = ModelSession(cast("Any", self.server.host), is_local=False)
        process.resources["postgres"] = self
        process.resources["attempt"] = int(process.name.rpartition("-")[2])
        return PlayedPostgresSink(PostgresSink("postgresql://", TARGET, **self.options), session)

    def next_task(self) -> Any:
        """Returns the context of a task."""
        number = next(self._tasks)
        return SimpleNamespace(taskAttemptId=lambda: number, partitionId=lambda: 0)

    def _lose(self, session: Session, process: Process) -> None:
        """Ends the session of a process that has died, unless the server cannot know."""
        if session.is_open and process.host.is_cut_off:
            self.world.reach("a server did not see that a driver had died")
            self.attempts[session.left_alone()] = self.attempts[session]
        session.close()


@dataclass(slots=True)
class PlayedPostgresSink:
    """A `PostgresSink` that takes tables."""

    sink: PostgresSink
    session: ModelSession
    reads_repeatedly: ClassVar[bool] = False

    def prepare(self, frame: pa.Table, context: SinkContext) -> str:
        try:
            return self.sink.prepare(cast("Any", TableFrame(self.session, (frame,))), context)
        except CarriedFailure as failure:  # as the runner does
            raise typed_failure(failure) from failure

    def publish(self, token: str) -> None:
        self.sink.publish(token)

    def discard(self, token: str) -> None:
        self.sink.discard(token)

    def take_over(self, context: SinkContext) -> None:
        self.sink.take_over(context)

    def recover(self, context: SinkContext) -> None:
        self.sink.recover(context)


def patches(world: World) -> list[tuple[Any, str, object]]:
    """Returns the replacements that make the product's sink use such a server."""

    def model() -> PostgresSinkModel:
        found: PostgresSinkModel = world.process.resources["postgres"]
        return found

    def connected(url: str, **settings: str) -> PlayedConnection:
        return model().connected(url, **settings)

    return [
        (postgres_connection, "connected", connected),
        (postgres_moves, "connected", connected),
        (OpenMoves, "_of_jobs", OwnMapping(world, "open moves")),
        (OpenMoves, "_left", OwnMapping(world, "rows to take back")),
        (postgres_copy, "TaskContext", SimpleNamespace(get=lambda: model().next_task())),
    ]
