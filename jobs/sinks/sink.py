"""The contract of a sink: two phases around a batch's commit.

`prepare` stages the batch where no reader looks and returns a token, which becomes part of the commit record. After the
commit `publish` makes the staged batch visible. A driver that dies between commit and publishing publishes again at its
next start, so publishing must be idempotent. A batch that was prepared but not committed is never published.

Without an answer from its system, a sink raises SinkUnavailableError. `publish` and `recover` are then called again,
and a batch in preparation is discarded and runs again, until the job's `store_outage_max_ms` has passed.

A sink may also let subtasks write to it directly (`DirectSink`), so that rows do not pass through Spark. A sink that
diverts invalid rows reports their number (`DeadLetterSink`), and the job's metrics count them. A sink that can be tried
without rows (`CheckedSink`) is tried before each attempt, and before a change stops the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from keyscale.identifiers import SubtaskIndex
    from keyscale.state.doors.commits import Rewind


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Identifies a batch of a sink.

    A batch becomes visible exactly once per (job_id, uid, batch_id).

    Attributes:
        job_id: The job.
        uid: The sink's uid.
        batch_id: The batch.
        attempt: The fencing number. Of two attempts that run the batch, only the attempt with the higher number can
            commit it.
        unique: An id that no other try of this batch has.
        forked_from: In `recover`, the other job that the attempt's snapshot comes from. That job may continue, so its
            output must not be changed. None for a job that starts from its own history.
        rewinds: In `recover` and `take_over`, the rewinds in the job's history, the oldest first. After a rewind,
            output of earlier attempts is part of the history only up to the rewind's batch.
    """

    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str
    forked_from: str | None = None
    rewinds: tuple[Rewind, ...] = ()


class Sink(Protocol):
    """A sink that takes each batch in two phases.

    All methods run on the driver.
    """

    reads_repeatedly: ClassVar[bool]
    """Whether `prepare` may read its frame more than once, or only a part of it.

    The batch is then computed before, and cached until `prepare` returns.
    """

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Stages the batch durably where no reader sees it.

        Returns a token by which `publish` finds it.
        """
        ...

    def publish(self, token: str) -> None:
        """Makes a committed batch visible.

        Idempotent.
        """
        ...

    def discard(self, token: str) -> None:
        """Deletes a prepared batch that was not committed.

        Idempotent.
        """
        ...

    def recover(self, context: SinkContext) -> None:
        """Removes batches that earlier runs have staged.

        Called once per run, after the last committed batch was published.

        So batches staged by this or an earlier attempt will never be published. A sink that has not written to its
        target before, while another job has, raises SinkOccupiedError before it writes anything.

        Args:
            context: The last committed batch (batch_id -1 before the first commit), and the attempt that starts.
        """
        ...


@runtime_checkable
class Takeover(Protocol):
    """A sink that may still have open work of earlier attempts."""

    def take_over(self, context: SinkContext) -> None:
        """Ends what earlier attempts hold in the sink's system.

        Examples are the locks of a sleeping driver.

        Called once per run, before the last committed batch is published. It changes no output of the job's history,
        but may take back output that the job has left.
        """
        ...


@runtime_checkable
class CheckedSink(Protocol):
    """A sink that can check its target before the first batch."""

    def check(self, schema: pa.Schema, context: SinkContext) -> None:
        """Writes to the target, invisible to readers, and takes it back.

        Called before the attempt begins, while an earlier attempt may still run: it fences none of its work.

        Args:
            schema: The schema of the rows.
            context: The attempt, with the id of this check as `unique`; its batch has no meaning.

        Raises:
            SinkForbiddenError: A right is missing. The message names the user, the place and the right.
            KeyscaleError: The target cannot be written to for another reason.
        """
        ...


class DirectOutput(Protocol):
    """One batch of a sink that subtasks write to.

    It is pickled into their tasks.
    """

    @property
    def token(self) -> str:
        """The token by which `publish` and `discard` find the batch."""
        ...

    def write(self, subtask: SubtaskIndex, records: Iterator[pa.RecordBatch]) -> str | None:
        """Writes all rows of a subtask where no reader sees them.

        Runs in a task.

        Several tasks may write for the same subtask, at the same time or even after `gather`: their parts stay
        separate.

        Returns:
            The name of the written part, for `gather`; None without rows.
        """
        ...


class DirectStaging(Protocol):
    """Stages batches that subtasks write; replaces `prepare`.

    Its methods run on the driver.
    """

    def begin(self, context: SinkContext) -> DirectOutput:
        """Prepares the output of one try of a batch."""
        ...

    def gather(self, token: str, parts: Sequence[str]) -> None:
        """Stages the given parts durably.

        Parts that other tasks have written, or still write, are never published.
        """
        ...


@runtime_checkable
class DirectSink(Sink, Protocol):
    """A sink that subtasks may write to directly.

    It must be the only reader of their operator's only output.
    """

    def direct(self, schema: pa.Schema) -> DirectStaging | None:
        """Returns the staging for rows of a schema.

        Returns None if readers would see a difference from `prepare`.

        Called once per run.
        """
        ...


@runtime_checkable
class DeadLetterSink(Sink, Protocol):
    """A sink that may divert rows to dead letters.

    Its system would refuse such rows.
    """

    def dead_letters_of(self, token: str) -> int:
        """Returns the number of dead letters of a prepared batch.

        The token alone suffices.
        """
        ...


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose published batches can be read again."""

    def published(self, token: str, schema: pa.Schema) -> DataFrame | None:
        """Returns the rows of a published batch.

        Args:
            token: The token of the batch.
            schema: The schema of the rows.

        Returns:
            The rows; None if they are gone, or cannot be read exactly.
        """
        ...
