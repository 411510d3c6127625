"""The contract of a source in Python.

Durable positions, tasks and exactly-once processing come with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from ..graph.schemas import Schema

Position: TypeAlias = int | str | dict[str, int | str]
"""A position in a split. Its meaning is up to the source; it is stored as JSON."""

LostRecords: TypeAlias = Literal["fail", "skip"]
"""The consequence if a job has not read records that are gone: it fails, or continues with the records that exist."""


class Loss(NamedTuple):
    """Lost records at the beginning of a range.

    Attributes:
        left: The first position that the source still has; the end of the range if it has no records of the range.
        records: Approximate number of lost records; None if unknown.
    """

    left: Position
    records: int | None


class Source(ABC):
    """A source of records in splits that can be read again.

    Each split can be read again from every position that a batch has started from.

    Each batch is planned on the driver before it runs: `discover` and `latest` determine the range of each split. The
    plan is durable in the job's commit log before any record is read, and part of every checkpoint and savepoint. Then
    the executors call `read`, which must return the same records whenever it is called with the same arguments: after a
    failed task, after a crash, at another parallelism. So every record takes effect exactly once.

    The source is pickled into the planner's process and into each task. Open connections at first use, and keep them
    out of the pickled state.
    """

    discovery_interval_ms: int = 30_000
    """How often the planner asks for new splits, in milliseconds."""

    split_columns: tuple[str, ...] = ()
    """The schema's columns that identify a record's split, if any. Each split then has its own watermark; see
    `DataStream.with_timestamps`.
    """

    lost_records: LostRecords = "fail"
    """With "skip", a job continues although the source no longer has records that the job has not read: see `losses`.
    """

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The records' columns."""

    @abstractmethod
    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        """Returns the new splits, each with its start position.

        Args:
            known: The splits that the job has positions for; empty when the job reads from the source for the first
                time. A split stays known forever, even if it no longer exists.
        """

    @abstractmethod
    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        """Returns how far the next batch reads each split.

        The driver also asks a copy of the source, without a limit, to count the records that wait.

        Args:
            positions: The position that each known split has been read up to.
            limit: The maximum number of records in the batch, if the job sets one; see `limited` for positions that are
                counts.

        Returns:
            End positions by split. Splits that are left out are not read.
        """

    @abstractmethod
    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """Yields the records of a split between two positions.

        `start` is inclusive, `end` is exclusive. Every call with the same arguments yields the same records.

        Raises:
            KeyscaleError: The split cannot be read. Any other exception also fails the batch.
        """

    def records_between(self, start: Position, end: Position) -> int | None:
        """Returns about how many records a split has between two positions.

        The number is negative if `end` comes before `start`. A job reports its backlog with it. A job that is drained
        reads up to the ends of its sources at the time of the command, in batches of the job's limit. None means that
        the source cannot count, which is the default for positions that are not numbers: the backlog is not reported,
        and draining reads everything in one batch of any size.
        """
        return end - start if isinstance(start, int) and isinstance(end, int) else None

    def losses(self, ranges: Mapping[str, tuple[Position, Position]]) -> Mapping[str, Loss]:  # noqa: ARG002
        """Returns the records of a batch's ranges that the source has lost.

        Losses are by split. Called before each batch if `lost_records` is "skip"; `latest` and `read` then need not
        raise for such losses. The batch reads the remaining records. Losses are counted, logged and shown. With "fail",
        called before a batch that an earlier run has planned; the batch fails if there are losses. By default there are
        none.
        """
        return {}

    def earliest(self, splits: Collection[str]) -> Mapping[str, Position]:  # noqa: ARG002
        """Returns the earliest position of each split that the source still has.

        Called after `latest`, at most once a minute. A verification compares it with the positions in a checkpoint, and
        so detects records that have expired but that a job starting from the checkpoint would read. Numbers and Kafka's
        positions can be compared. The result omits splits with an unknown position; by default all are unknown. The
        next batch waits for the answer. An exception is logged and does not fail the batch.
        """
        return {}

    def retention_ms(self) -> int | None:
        """Returns for how many milliseconds the source keeps a record.

        None: unknown, or for ever.

        Called with `earliest`. The job's page shows until when the job can start from its newest checkpoint, and a
        notification comes before that time. An exception is logged and does not fail the batch.
        """
        return None

    def close(self) -> None:  # noqa: B027 - users may override it
        """Closes the source, in the planner's process, when the job ends."""
