"""The contract between the runtime and the operators.

An `OperatorLogic` is declared on the driver and pickled into the tasks. In a task it starts an `Operator` over the
state of one subtask. Each kind of operator (process, deduplicate, ...) implements both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyscale.state.doors.keyed import BatchClock, NextTimers, OperatorStateBackend
from keyscale.state.doors.values import KeyTooLargeError, fixed_values

from .column_values import latest_by_ms, latest_ms, up_to_ms
from .failed_records import FailedRecords, coordinates_of, without_large_keys
from .two_inputs import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from keyscale.state.doors.keyed import KeyedStateBackend
    from keyscale.user_series import UserSeries

    from ..functions.subtask_info import SplitInfo, SubtaskInfo

KEY_GROUP_COLUMN = "__key_group"
ORIGIN_COLUMN = "__origin"
SPLIT_COLUMN = "__split"
LARGEST_KEY_GROUPS = 16
"""Maximum number of a subtask's key groups whose records are reported."""


@dataclass(frozen=True, slots=True)
class SideBatch:
    """Records of a side output."""

    tag: str
    records: pa.RecordBatch


OutputBatch: TypeAlias = pa.RecordBatch | SideBatch
"""Records emitted by an operator to the main output or a side output."""


class Operator(Protocol):
    """An operator running in one task.

    Implementations inherit from it, since most have no timers.

    Attributes:
        counts: The operator's counters in the batch, by the names in `keyscale.metrics`.
        failed: The records in the batch that the operator failed on without failing the batch.
    """

    failed: FailedRecords | None = None

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter()

    def process(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:
        """Processes a batch of input; yields batches of the output schema.

        The batch has the input columns and `__key_group`.
        """
        ...

    def process_broadcast(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:  # noqa: ARG002 - to override
        """Processes a batch of broadcast records.

        Every subtask gets the same batch. Called before the first batch of input.
        """
        return iter(())

    def process_second(self, batch: pa.RecordBatch) -> Iterator[OutputBatch]:  # noqa: ARG002 - to override
        """Processes a batch of the second input, with `__key_group`."""
        return iter(())

    def divert(self, batch: pa.RecordBatch, row: int, error: Exception) -> None:  # noqa: ARG002 - to override
        """Takes a record that cannot be processed.

        Called only for records that do not fail the batch.
        """
        return

    def fire(self) -> Iterator[OutputBatch]:
        """Fires all timers that are due by the state's clock.

        Called after the last batch.
        """
        return iter(())

    def next_times(self) -> NextTimers:
        """Returns the earliest remaining timers.

        Called after `fire`.
        """
        return NextTimers()

    def close(self) -> None:
        """Closes the operator after the last batch and the timers.

        Not called if the task has failed.
        """
        return


class OperatorLogic(Protocol):
    """The declaration of an operator's work.

    It is picklable. Implementations inherit from it.
    """

    @property
    def uses_timers(self) -> bool:
        """Whether subtasks also run without records, when timers are due."""
        return False

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        """Returns the schema that state is keyed by in a key group.

        By default this is the stream's key.
        """
        return key

    def start(self, state: KeyedStateBackend, info: SubtaskInfo) -> Operator: ...

    def start_with(self, state: KeyedStateBackend, info: SubtaskInfo, operator_state: OperatorStateBackend) -> Operator:
        """Starts with operator state.

        Overridden by logic that keeps operator state.
        """
        del operator_state
        return self.start(state, info)


@dataclass(slots=True)
class SubtaskProgress:
    """The work of one subtask in one batch.

    Attributes:
        input_records: Number of records received.
        records_of_origins: Number of records received by origin name; empty for a single origin.
        output_records: Number of records emitted to all outputs.
        latest_event_ms: The latest event time among the records, if any.
        latest_of_origins: The latest event time of the records by origin name, for origins with event times.
        latest_of_splits: The latest event time by `SplitInfo.name` and split, for origins in splits.
        next_timers: The earliest remaining timers.
        counts: The operator's further counters, by the names in `keyscale.metrics`.
        user_series: The metrics of the user's function.
        user_help: Their meanings, by name.
        ahead_records: Number of records whose event times are too far ahead of the processing time.
        first_failure: The error and the coordinates of the first failed record, if any.
        key_group_records: Number of records by key group number, up to the highest number seen.
    """

    input_records: int = 0
    records_of_origins: dict[str, int] = field(default_factory=dict)
    output_records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    user_series: tuple[UserSeries, ...] = ()
    user_help: dict[str, str] = field(default_factory=dict)
    ahead_records: int = 0
    first_failure: str | None = None
    latest_event_ms: int | None = None
    latest_of_origins: dict[str, int] = field(default_factory=dict)
    latest_of_splits: dict[str, dict[str, int]] = field(default_factory=dict)
    next_timers: NextTimers = field(default_factory=NextTimers)
    key_group_records: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def largest_key_group(self) -> int | None:
        """The key group with the most records, if any."""
        return int(self.key_group_records.argmax()) if len(self.key_group_records) else None

    @property
    def largest_key_group_records(self) -> int:
        """The number of records of that key group."""
        return int(self.key_group_records.max(initial=0))

    def largest_key_groups(self) -> dict[int, int]:
        """Returns the numbers of records of the largest key groups."""
        counts = self.key_group_records
        largest = np.argsort(counts, kind="stable")[: -1 - LARGEST_KEY_GROUPS : -1]
        return {int(group): int(counts[group]) for group in largest if counts[group]}

    def saw(self, latest_event_ms: int | None, origin: str | None = None) -> None:
        """Notes the latest event time of some records."""
        if latest_event_ms is None:
            return
        if self.latest_event_ms is None or latest_event_ms > self.latest_event_ms:
            self.latest_event_ms = latest_event_ms
        if origin is not None:
            self.latest_of_origins[origin] = max(latest_event_ms, self.latest_of_origins.get(origin, latest_event_ms))

    def saw_batch(
        self, batch: pa.RecordBatch, info: SubtaskInfo, timestamp_column: str | None, until_ms: int | None = None
    ) -> None:
        """Notes the number, key groups and event times of a batch.

        Event times after `until_ms` do not count.
        """
        self.input_records += batch.num_rows
        more, less = np.bincount(fixed_values(batch.column(KEY_GROUP_COLUMN))), self.key_group_records
        if len(more) < len(less):
            more, less = less, more
        more[: len(less)] += less
        self.key_group_records = more
        if info.origins:
            counts = np.bincount(fixed_values(batch.column(ORIGIN_COLUMN)), minlength=len(info.origins))
            for origin, count in zip(info.origins, counts.tolist(), strict=True):
                self.records_of_origins[origin] = self.records_of_origins.get(origin, 0) + count
        if timestamp_column is None:
            return
        if until_ms is not None:
            in_reach = up_to_ms(batch, timestamp_column, until_ms)
            self.ahead_records += batch.num_rows - in_reach.num_rows
            batch = in_reach
        if not info.origins:
            self.saw(latest_ms(batch, timestamp_column))
            for splits in info.splits.values():
                self._saw_splits(batch, splits, timestamp_column)
            return
        for number, origin in enumerate(info.origins):
            records = batch.filter(pc.equal(batch.column(ORIGIN_COLUMN), number))
            self.saw(latest_ms(records, timestamp_column), origin)
            if records.num_rows and origin in info.splits:
                self._saw_splits(records, info.splits[origin], timestamp_column)

    def _saw_splits(self, records: pa.RecordBatch, splits: SplitInfo, timestamp_column: str) -> None:
        latest = self.latest_of_splits.setdefault(splits.name, {})
        for split, reached_ms in latest_by_ms(records, timestamp_column, splits.columns).items():
            latest[split] = max(reached_ms, latest.get(split, reached_ms))


def run_subtask(
    logic: OperatorLogic,
    state: KeyedStateBackend,
    info: SubtaskInfo,
    batches: Iterable[pa.RecordBatch],
    *,
    progress: SubtaskProgress,
    watermark_ms: int | None = None,
    is_at_end: bool = False,
    operator_state: OperatorStateBackend | None = None,
    broadcast: Iterable[pa.RecordBatch] = (),
) -> Iterator[OutputBatch]:
    """Runs one batch of one subtask: all records, then the due timers.

    It runs in a task or in a test's harness.

    Records are processed at the watermark of the state's clock, at which the previous batch fired its timers. So
    records that an upstream operator's timers emit in this batch are not late here. Then the watermark advances.

    Args:
        logic: The operator's logic.
        state: The subtask's keyed state, at the batch's processing time.
        info: The subtask's info.
        batches: The subtask's records, with `__key_group`.
        progress: Filled in while the batch runs.
        watermark_ms: The watermark from the records of all earlier batches; None if it does not change.
        is_at_end: Whether the input has ended, so that all event-time timers fire. The watermark stays.
        operator_state: The subtask's operator state.
        broadcast: Broadcast records, which all subtasks process before their own.

    Yields:
        The emitted records.
    """
    operator = logic.start_with(state, info, operator_state or OperatorStateBackend())
    failed = operator.failed or FailedRecords(info)
    for batch in broadcast:
        yield from _counted(operator.process_broadcast(batch), progress)
    for batch in batches:
        for port, records in [(0, batch)] if info.second is None else unpacked(batch):
            of_input = info.second if port and info.second else info
            until_ms = None if of_input.max_ahead_ms is None else state.clock.processing_time_ms + of_input.max_ahead_ms
            progress.saw_batch(records, info, of_input.timestamp_column, until_ms)
            if progress.latest_event_ms is not None and isinstance(state.clock, BatchClock):
                state.clock.saw(progress.latest_event_ms)
            fit = _storable(records, state, operator, failed, _info_of(info, port))
            yield from _counted(operator.process_second(fit) if port else operator.process(fit), progress)
    if watermark_ms is not None and isinstance(state.clock, BatchClock):
        state.clock.advance(event_time_ms=watermark_ms)
    if isinstance(state.clock, BatchClock):
        state.clock.is_at_end = is_at_end
    try:
        yield from _counted(operator.fire(), progress)
    finally:
        if isinstance(state.clock, BatchClock):
            state.clock.is_at_end = False
    progress.next_timers = operator.next_times()
    progress.counts, progress.first_failure = operator.counts, failed.first
    progress.counts["dead_letters"] = failed.count
    operator.close()
    progress.user_series, progress.user_help = info.metrics.series(), info.metrics.help


def _storable(
    batch: pa.RecordBatch, state: KeyedStateBackend, operator: Operator, failed: FailedRecords, info: SubtaskInfo
) -> pa.RecordBatch:
    """Returns the records whose keys can be stored.

    The others become dead letters or are dropped, if the job allows.

    Raises:
        KeyTooLargeError: A key is too large; the message has the record's coordinates.
    """
    fit, errors = without_large_keys(batch, state, info)
    for row, error in errors:
        if not failed.keeps_batch:
            raise KeyTooLargeError(f"{error}, {coordinates_of(batch, row, info)}")
        failed.note(error, batch, row, info)
        operator.divert(batch, row, error)
    return fit


def _info_of(info: SubtaskInfo, port: int) -> SubtaskInfo:
    """Returns the info for the records of one input."""
    second = info.second
    if not port or second is None:
        return info
    return replace(info, input_columns=second.input_columns, key_columns=second.key_columns)


def _counted(outputs: Iterator[OutputBatch], progress: SubtaskProgress) -> Iterator[OutputBatch]:
    for output in outputs:
        progress.output_records += output.records.num_rows if isinstance(output, SideBatch) else output.num_rows
        yield output
