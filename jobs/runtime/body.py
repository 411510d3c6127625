"""The seam between the runtime and what an operator does with its records.

An `OperatorLogic` is declared on the driver and pickled into the tasks; there it starts an `OperatorBody` over the state of
one subtask. Each kind of operator (process, deduplicate, ...) is one implementation of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from jobs.runtime.columns import latest_ms
from state.hashing import HashId
from state.ttl import BatchClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from state.identifiers import Attempt, OperatorUid, SubtaskIndex
    from state.keyed import KeyedStateBackend

KEY_GROUP_COLUMN = "__key_group"


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


@dataclass(slots=True)
class SubtaskProgress:
    """What one subtask did in one batch.

    Attributes:
        input_records: Records that came in.
        output_records: Records that went out, to all outputs.
        latest_event_ms: The latest event time among the records; None if there was none.
        next_timers: When it has something to do although no record comes.
    """

    input_records: int = 0
    output_records: int = 0
    latest_event_ms: int | None = None
    next_timers: NextTimers = field(default_factory=NextTimers)

    def saw(self, latest_event_ms: int | None) -> None:
        """Takes note of the latest event time of some records."""
        if self.latest_event_ms is None or (latest_event_ms is not None and latest_event_ms > self.latest_event_ms):
            self.latest_event_ms = latest_event_ms


def run_subtask(
    logic: OperatorLogic,
    state: KeyedStateBackend,
    facts: SubtaskFacts,
    batches: Iterable[pa.RecordBatch],
    *,
    progress: SubtaskProgress,
    watermark_ms: int | None = None,
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
    """
    body = logic.start(state, facts)
    for batch in batches:
        progress.input_records += batch.num_rows
        if facts.timestamp_column is not None:
            progress.saw(latest_ms(batch, facts.timestamp_column))
            if progress.latest_event_ms is not None and isinstance(state.clock, BatchClock):
                state.clock.saw(progress.latest_event_ms)
        yield from _counted(body.process(batch), progress)
    if watermark_ms is not None and isinstance(state.clock, BatchClock):
        state.clock.advance(event_time_ms=watermark_ms)
    yield from _counted(body.fire(), progress)
    progress.next_timers = body.next_times()
    body.close()


def _counted(outputs: Iterator[OutputBatch], progress: SubtaskProgress) -> Iterator[OutputBatch]:
    for output in outputs:
        progress.output_records += output.records.num_rows if isinstance(output, SideBatch) else output.num_rows
        yield output
