"""The contract of a source in Python; durable positions, tasks and exactly-once processing come with it."""

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
"""The consequence if records are gone that a job has not read: it fails, or goes on with those that exist."""


class Loss(NamedTuple):
    """Records at the beginning of a range that a source no longer has.

    Attributes:
        left: The position at which the records begin that it still has; the end of the range if it has none.
        records: How many are lost, about; None if that is not known.
    """

    left: Position
    records: int | None


class Source(ABC):
    """A source of records in splits. Each split can be read again from any position that was read from before.

    Each batch is planned on the driver before it runs: `discover` and `latest` determine the range of each split. The
    plan is durable in the job's commit log before any record is read, and part of every checkpoint and savepoint. Then
    the executors call `read`, which must return the same records whenever it is called with the same arguments: after a
    failed task, after a crash, at another parallelism. So every record has its effect exactly once.

    The source is pickled into the planner's process and into each task. Open connections at first use, and keep them
    out of the pickled state.
    """

    discovery_interval_ms: int = 30_000
    """How often the planner asks for new splits, in milliseconds."""

    split_columns: tuple[str, ...] = ()
    """The columns of the schema, if there are any, that name the split that a record comes from. As long as a job keeps
    these columns, each split has a watermark of its own; see `DataStream.with_timestamps`."""

    lost_records: LostRecords = "fail"
    """With "skip", a job goes on although the source no longer has records that it has not read: see `losses`."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The records' columns."""

    @abstractmethod
    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        """Returns the splits that are not known yet, each with the position at which to begin.

        Args:
            known: The splits that the job has positions for; empty when the job reads from the source for the first
                time. A split stays known forever, even if it no longer exists.
        """

    @abstractmethod
    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        """Returns how far the next batch reads each split.

        Args:
            positions: The position that each known split has been read up to.
            limit: The maximum number of records in the batch, if the job sets one; see `limited` for positions that are
                counts.

        Returns:
            End positions by split. Splits that are left out are not read.
        """

    @abstractmethod
    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """Yields the records of a split from `start` (inclusive) to `end` (exclusive), the same ones at every call.

        Raises:
            KeyscaleError: The split cannot be read. Any other exception fails the batch, too.
        """

    def records_between(self, start: Position, end: Position) -> int | None:
        """Returns how many records a split has between two positions, about; negative if `end` comes before `start`.

        The backlog that a job reports is counted so. A job that is drained reads up to where its sources ended at the
        command, in batches of the job's limit. None means that the source cannot tell, as by default one whose
        positions are no numbers: its backlog is not reported, and it is drained in one batch of any size.
        """
        return end - start if isinstance(start, int) and isinstance(end, int) else None

    def losses(self, ranges: Mapping[str, tuple[Position, Position]]) -> Mapping[str, Loss]:  # noqa: ARG002
        """Returns what the source no longer has of the ranges that a batch is to read, by split.

        Asked before each batch if `lost_records` is "skip"; `latest` and `read` then need not raise for such losses.
        The batch reads what is left. Losses are counted, logged and shown. Otherwise asked before a batch that an
        earlier run has planned, which then fails if there are any. By default there are none.
        """
        return {}

    def earliest(self, splits: Collection[str]) -> Mapping[str, Position]:  # noqa: ARG002
        """Returns the earliest position that the source still has of each split; by default it is not known.

        Asked after `latest`, once a minute at most. A verification compares it with the positions in a checkpoint, and
        so finds that records have expired which a job that starts from there would read. Numbers can be compared, and
        Kafka's positions. Of splits that are left out it is not known. The next batch waits for the answer. An
        exception is logged, and does not fail the batch.
        """
        return {}

    def close(self) -> None:  # noqa: B027 - users may override it
        """Called in the planner's process when the job ends."""
