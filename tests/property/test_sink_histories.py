"""Random histories of a job with a sink: readers see the rows of the history that the job has kept, each once.

Drivers die before any effect on the sink's system. The job goes back to savepoints, starts without state, and runs
programs without the sink.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyscale import FileSink, PostgresSink
from keyscale.identifiers import Attempt, BatchId
from keyscale.jobs.sinks import files, postgres, postgres_connection, postgres_copy, postgres_moves
from keyscale.jobs.sinks.postgres_moves import OpenMoves
from keyscale.state.documents.rewind import Rewind
from tests.property.histories import EXAMPLES, SCRATCH
from tests.support.sinks.driver import Host, KilledError, SinkDriver
from tests.support.sinks.file_system import ModelSession, TableFrame, use_model
from tests.support.sinks.postgres_server import Server, Session, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.jobs.sinks.sink import Sink

SCHEMA = pa.schema([("id", pa.int64()), ("attempt", pa.int64())])
Row = tuple[int, int]


@dataclass(frozen=True)
class Past:
    """A job's history, as a savepoint keeps it.

    Attributes:
        batches: The rows of each batch; none if the program had no sink.
        rewinds: The rewinds in the history.
        is_of_another_job: Whether another job has taken the savepoint.
    """

    batches: tuple[tuple[Row, ...], ...] = ()
    rewinds: tuple[Rewind, ...] = ()
    is_of_another_job: bool = False


@dataclass
class Job(SinkDriver):
    """A job whose drivers run programs with and without the sink."""

    past: Past = field(default_factory=Past)
    sink: Sink | None = None

    def open(self, base: Past | None, *, has_sink: bool) -> None:
        """Begins an attempt, which goes back to a savepoint if it is given; its driver may die."""
        if base is not None:
            kept = -1 if base.is_of_another_job else len(base.batches) - 1
            rewind = Rewind(Attempt(self.attempt + 1), BatchId(kept))
            self.past = Past(base.batches, (*base.rewinds, rewind))
            self.tokens = {}
        self.committed, self.rewinds, self.sink = len(self.past.batches) - 1, self.past.rewinds, None
        if has_sink:
            self.sink = self.start()
        else:
            self.attempt += 1

    def commit(self) -> None:
        """Runs a batch; its driver may die before or after the commit."""
        batch_id, rows, token = self.committed + 1, (), None
        if self.sink is not None:
            rows = rows_of(batch_id, self.attempt)
            token = self.sink.prepare(self.frame(batch_id, self.attempt), self.context(batch_id))
        self.committed, self.past = batch_id, Past((*self.past.batches, rows), self.past.rewinds)
        self.tokens = {} if token is None else {batch_id: token}
        if self.sink is not None and token is not None:
            self.sink.publish(token)


@dataclass(frozen=True)
class Event:
    """What happens to a job.

    Attributes:
        kind: Its driver commits batches, its user takes a savepoint, starts it again, makes it go back,
            or starts it from another job's savepoint.
        number: Of batches, or of the savepoint from the newest on; one more than all is a start without state.
        has_sink: Whether the program has the sink from now on.
        kill: The effect before which the driver dies; None: it lives.
    """

    kind: str
    number: int
    has_sink: bool
    kill: int | None


EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(["commit", "commit", "savepoint", "restart", "go back", "fork"]),
        st.integers(1, 3),
        st.sampled_from([True, True, False]),
        st.sampled_from([None, None, *range(1, 13)]),
    ),
    min_size=25,
    max_size=40,
)


def rows_of(batch_id: int, attempt: int) -> tuple[Row, ...]:
    return tuple((10 * batch_id + part, attempt) for part in range(2))


class History:
    """Plays events on a job, and compares what readers see with the job's history."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.job = Job(system.make, system.frame)
        self.savepoints: list[Past] = []
        self.runs = self.has_sink = self.begins_anew = False

    def play(self, event: Event) -> None:
        with self.killed_before(event.kill):
            match event.kind:
                case "commit" if self.runs:
                    for _ in range(event.number):
                        self.job.commit()
                case "savepoint" if self.runs:
                    self.savepoints.append(self.job.past)
                case "restart":
                    # A program without the sink of a batch that may be unpublished is refused.
                    may_be_unpublished = not self.runs and bool(self.job.tokens)
                    self.start(None, has_sink=event.has_sink or may_be_unpublished)
                case "go back":
                    base = self.savepoints[-event.number] if event.number <= len(self.savepoints) else Past()
                    self.begins_anew = not base.batches
                    if not self.begins_anew:  # else the job may still go back to them until its first batch
                        del self.savepoints[len(self.savepoints) - event.number + 1 :]
                    self.start(base, has_sink=event.has_sink)
                case "fork":  # of a job whose rows are elsewhere
                    self.begins_anew, self.savepoints = False, []
                    self.start(Past(((),) * 2 * event.number, is_of_another_job=True), has_sink=event.has_sink)
        if self.begins_anew and self.job.past.batches:
            self.begins_anew, self.savepoints = False, []
        if self.runs and self.has_sink and not self.begins_anew:
            kept = Counter(row for batch in self.job.past.batches for row in batch)
            self.system.check(kept, self.system.visible())

    def start(self, base: Past | None, *, has_sink: bool) -> None:
        self.has_sink, self.runs = has_sink, True
        self.job.open(base, has_sink=has_sink)

    @contextmanager
    def killed_before(self, effect: int | None) -> Iterator[None]:
        host = self.system.host
        host.kill_before = None if effect is None else host.effects + effect
        try:
            yield
        except KilledError:
            self.runs = False
        host.kill_before = None


class System:
    """A system that a sink writes to."""

    def __init__(self, path: Path) -> None:
        self.host, self.path = Host(), path
        self.session = ModelSession(self.host, is_local=False)

    def make(self) -> Sink:
        """Makes the sink of a new process."""
        raise NotImplementedError

    def frame(self, batch_id: int, attempt: int) -> TableFrame:
        tables = (
            pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True))], SCHEMA)
            for row in rows_of(batch_id, attempt)
        )
        return TableFrame(self.session, tuple(tables))

    def visible(self) -> Counter[Row]:
        """Returns the rows that readers see."""
        raise NotImplementedError

    def check(self, kept: Counter[Row], visible: Counter[Row]) -> None:
        assert visible == kept


class BatchColumn(System):
    """A table from which the rows of later batches are deleted."""

    options: ClassVar[dict[str, Any]] = {"batch_column": "batch"}

    def __init__(self, patch: pytest.MonkeyPatch, path: Path) -> None:
        super().__init__(path)
        self.server = Server(Surroundings(self.host), {"orders": Table(("id", "attempt", "batch"))})
        for module in (postgres_connection, postgres_moves):
            patch.setattr(module, "connected", self.server.connected)
        tasks = count()
        task = SimpleNamespace(get=lambda: SimpleNamespace(taskAttemptId=lambda: next(tasks), partitionId=lambda: 0))
        patch.setattr(postgres_copy, "TaskContext", task)
        patch.setattr(OpenMoves, "_of_jobs", {})
        patch.setattr(OpenMoves, "_left", {})

    def make(self) -> Sink:
        OpenMoves._of_jobs.clear()
        OpenMoves._left.clear()
        for session in list(self.server.sessions):
            session.close()
        return PostgresSink("url", "orders", **self.options)

    def visible(self) -> Counter[Row]:
        return Counter((row["id"], row["attempt"]) for row in self.server.tables["orders"].rows)


class Keys(BatchColumn):
    """A table whose later rows stay until the job reaches their keys again."""

    options: ClassVar[dict[str, Any]] = {"keys": ("id",)}

    def check(self, kept: Counter[Row], visible: Counter[Row]) -> None:
        assert kept <= visible
        assert len({key for key, _ in visible}) == visible.total()


class Files(System):
    """A directory from which the directories of later batches are removed."""

    def __init__(self, patch: pytest.MonkeyPatch, path: Path) -> None:
        super().__init__(path)
        use_model(patch, self.session, files)

    def make(self) -> Sink:
        return FileSink(str(self.path), "json")

    def visible(self) -> Counter[Row]:
        lines = [line for file in self.path.glob("batch=*/*.json") for line in file.read_text().splitlines()]
        return Counter((row["id"], row["attempt"]) for row in map(json.loads, lines))


@dataclass(frozen=True)
class Surroundings:
    """A world in which no driver waits for another one."""

    host: Host

    def act(self) -> None:
        self.host.act()

    def now(self) -> float:
        return 0.0

    def wait(self, _: float) -> None:
        raise AssertionError("a driver waits for a session of a driver that is gone")

    def waited(self, session: Session, holder: Session, seconds: float) -> None: ...

    def committed(self) -> None: ...

    def ended(self, session: Session) -> None: ...


def play(system: type[BatchColumn | Files], events: list[Event]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=SCRATCH) as directory:
        history = History(system(patch, Path(directory, "out")))
        for event in events:
            history.play(event)


@pytest.mark.parametrize("system", [BatchColumn, Keys, Files])
def test_readers_see_the_rows_of_the_history_that_the_job_has_kept(system: type[BatchColumn | Files]) -> None:
    @settings(max_examples=2 * EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck])
    @given(EVENTS)
    def check(events: list[Event]) -> None:
        play(system, events)

    check()


@pytest.mark.parametrize(("system", "module"), [(BatchColumn, postgres), (Files, files)])
@pytest.mark.parametrize("has_sink", [True, False])
def test_a_sink_that_forgets_where_the_job_went_back_is_found(
    monkeypatch: pytest.MonkeyPatch, system: type[BatchColumn | Files], module: Any, *, has_sink: bool
) -> None:
    begin, commit, savepoint = (
        Event("restart", 0, True, None),
        Event("commit", 3, True, None),
        Event("savepoint", 1, True, None),
    )
    events = [begin, commit, savepoint, commit, Event("go back", 1, has_sink, None), commit, begin]
    play(system, events)
    monkeypatch.setattr(module, "last_kept", lambda marker, *_: marker.batch_id)
    with pytest.raises(AssertionError):
        play(system, events)
