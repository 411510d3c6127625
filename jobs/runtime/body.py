"""The seam between the runtime and what an operator does with its records.

An `OperatorLogic` is declared on the driver and pickled into the tasks; there it starts an `OperatorBody` over the state of
one subtask. Each kind of operator (process, deduplicate, ...) is one implementation of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jobs.runtime.columns import latest_ms
from jobs.runtime.two_inputs import unpacked
from state.hashing import HashId
from state.operator_state import OperatorStateBackend
from state.ttl import BatchClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from state.identifiers import Attempt, OperatorUid, SubtaskIndex
    from state.keyed import KeyedStateBackend

KEY_GROUP_COLUMN = "__key_group"
ORIGIN_COLUMN = "__origin"


@dataclass(frozen=True, slots=True)
class SecondFacts:
    """What the records of an operator's second input have; attributes as of SubtaskFacts."""

    input_columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    timestamp_column: str | None = None


@dataclass(frozen=True, slots=True)
class SubtaskFacts:
    """Which subtask of which operator is at work, and on what.

    Attributes:
        operator_uid: The operator.
        subtask: Its subtask.
        parallelism: How many there are.
        max_parallelism: Key groups.
        attempt: The attempt that runs.
        input_columns: Names of the records' columns.
        key_columns: Those that are the key.
        timestamp_column: The one that is the event time; None if there is none.
        output_schema: Of the main output.
        side_outputs: Schemas of the declared side outputs, by the tag's name.
        hash_id: How keys are hashed to key groups.
        origins: Names of the sources and operators that the records come from, which their `__origin` counts; none where it is
            of no interest.
        broadcast_columns: Names of the columns of the broadcast records; none where there is no such stream.
        second: Of the second keyed input; None where there is none.
    """

    operator_uid: OperatorUid
    subtask: SubtaskIndex
    parallelism: int
    max_parallelism: int
    attempt: Attempt
    input_columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    timestamp_column: str | None
    output_schema: pa.Schema
    side_outputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    hash_id: HashId = HashId.SPARK
    origins: tuple[str, ...] = ()
    broadcast_columns: tuple[str, ...] = ()
    second: SecondFacts | None = None


@dataclass(frozen=True, slots=True)
class SideBatch:
    """Records of a side output."""

    tag: str
    records: pa.RecordBatch


OutputBatch: TypeAlias = pa.RecordBatch | SideBatch
"""What bodies put out: records of the main output, or of a side output."""


class NextTimers(msgspec.Struct, frozen=True):
    """When a subtask has something to do although no record comes: its earliest timers, or None. Milliseconds."""

    event_ms: int | None = None
    processing_ms: int | None = None


class OperatorBody(Protocol):
    """An operator at work in one task. Implementations inherit from it, as most have no timers."""

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        """Takes input columns and `__key_group`; gives batches of the output schema."""
        ...

    def process_broadcast(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:  # noqa: ARG002 - for those that have some
        """Takes broadcast columns, in every subtask the same; called before the first batch."""
        return iter(())

    def process_second(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:  # noqa: ARG002 - as above
        """Takes columns of the second input and `__key_group`."""
        return iter(())

    def fire(self) -> Iterator[OutputBatch]:
        """Fires all timers that are due by the state's clock; called after the last batch."""
        return iter(())

    def next_times(self) -> NextTimers:
        """The earliest timers that are left; called after `fire`."""
        return NextTimers()

    def close(self) -> None:
        """Called once, after the last batch and the timers; not when the task has failed."""
        return


class OperatorLogic(Protocol):
    """What an operator is to do, as it was declared. Picklable. Implementations inherit from it."""

    @property
    def uses_timers(self) -> bool:
        """Whether its subtasks run also without records, when timers are due."""
        return False

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        """What its state is keyed by, within a key group: the stream's key, unless it keeps something else in its place."""
        return key

    def start(self, state: KeyedStateBackend, facts: SubtaskFacts) -> OperatorBody: ...

    def start_with(self, state: KeyedStateBackend, facts: SubtaskFacts, operator: OperatorStateBackend) -> OperatorBody:
        """As `start`; overridden by those that keep operator state."""
        del operator
        return self.start(state, facts)


@dataclass(slots=True)
class SubtaskProgress:
    """What one subtask did in one batch.

    Attributes:
        input_records: Records that came in.
        output_records: Records that went out, to all outputs.
        latest_event_ms: The latest event time among the records; None if there was none.
        latest_of_origins: The same of the records of each origin that has any, by its name.
        next_timers: When it has something to do although no record comes.
    """

    input_records: int = 0
    output_records: int = 0
    latest_event_ms: int | None = None
    latest_of_origins: dict[str, int] = field(default_factory=dict)
    next_timers: NextTimers = field(default_factory=NextTimers)

    def saw(self, latest_event_ms: int | None, origin: str | None = None) -> None:
        """Takes note of the latest event time of some records."""
        if latest_event_ms is None:
            return
        if self.latest_event_ms is None or latest_event_ms > self.latest_event_ms:
            self.latest_event_ms = latest_event_ms
        if origin is not None:
            self.latest_of_origins[origin] = max(latest_event_ms, self.latest_of_origins.get(origin, latest_event_ms))

    def saw_batch(self, batch: pa.RecordBatch, facts: SubtaskFacts, timestamp_column: str | None) -> None:
        """Takes note of the event times of a batch of records."""
        self.input_records += batch.num_rows
        if timestamp_column is None:
            return
        if not facts.origins:
            self.saw(latest_ms(batch, timestamp_column))
            return
        for number, origin in enumerate(facts.origins):
            records = batch.filter(pc.equal(batch.column(ORIGIN_COLUMN), number))
            self.saw(latest_ms(records, timestamp_column), origin)


def run_subtask(
    logic: OperatorLogic,
    state: KeyedStateBackend,
    facts: SubtaskFacts,
    batches: Iterable[pa.RecordBatch],
    *,
    progress: SubtaskProgress,
    watermark_ms: int | None = None,
    operator: OperatorStateBackend | None = None,
    broadcast: Iterable[pa.RecordBatch] = (),
) -> Iterator[OutputBatch]:
    """One batch of one subtask, the same in a task and in a test's harness: all records, then the timers that are due.

    Records are seen at the watermark that the state's clock shows, which is the one that the batch before fired its timers
    with: what an operator upstream puts out when timers fire in this batch is not late here. Then time moves on.

    Args:
        logic: The operator.
        state: Of the subtask, at the batch's processing time.
        facts: Of the subtask.
        batches: Its records, with `__key_group`.
        progress: Is filled in.
        watermark_ms: What the records of all earlier batches make the watermark; None: it stays.
        operator: The subtask's operator state.
        broadcast: Records that all subtasks get, before their own.
    """
    body = logic.start_with(state, facts, operator or OperatorStateBackend())
    for batch in broadcast:
        yield from _counted(body.process_broadcast(batch), progress)
    for batch in batches:
        for port, records in [(0, batch)] if facts.second is None else unpacked(batch):
            at_second = facts.second if port else None
            progress.saw_batch(records, facts, at_second.timestamp_column if at_second else facts.timestamp_column)
            if progress.latest_event_ms is not None and isinstance(state.clock, BatchClock):
                state.clock.saw(progress.latest_event_ms)
            yield from _counted(body.process_second(records) if port else body.process(records), progress)
    if watermark_ms is not None and isinstance(state.clock, BatchClock):
        state.clock.advance(event_time_ms=watermark_ms)
    yield from _counted(body.fire(), progress)
    progress.next_timers = body.next_times()
    body.close()


def _counted(outputs: Iterator[OutputBatch], progress: SubtaskProgress) -> Iterator[OutputBatch]:
    for output in outputs:
        progress.output_records += output.records.num_rows if isinstance(output, SideBatch) else output.num_rows
        yield output
