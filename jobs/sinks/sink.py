"""The contract of a sink: two phases around the commit of a batch.

`prepare` stages the batch where no reader looks and returns a token, which becomes part of the commit record. After the
commit `publish` makes the staged batch visible. A driver that dies between the two publishes again at its next start,
so publishing the same token several times must have the effect of publishing it once. A batch that was prepared but not
committed is never published.

A sink whose system does not answer raises SinkUnavailableError. `publish` and `recover` are then called again, and a
batch that was being prepared is discarded and runs again, until the job's `store_outage_max_ms` has passed.

A sink may also let subtasks write to it themselves (`DirectSink`), so that rows do not pass through Spark. One that
puts rows aside which its system would refuse says how many (`RefusingSink`), and the job's figures count them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from keyscale.state.identifiers import SubtaskIndex


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Identifies a batch of a sink. A batch becomes visible exactly once per (job_id, uid, batch_id).

    Attributes:
        job_id: The job.
        uid: The sink's uid.
        batch_id: The batch.
        attempt: The fencing number. Of two attempts that run the batch, only the higher one can commit it.
        unique: An id that no other try of this batch has.
        forked_from: In `recover`, the job from whose snapshot the attempt starts, if it is another one. That job may
            go on, so its output is not to be touched. None for a job that starts from its own history.
    """

    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str
    forked_from: str | None = None


class Sink(Protocol):
    """A sink that takes each batch in two phases. All methods run on the driver."""

    reads_repeatedly: ClassVar[bool]
    """Whether `prepare` may read its frame more than once, or only a part of it.

    The batch is then computed before, and cached until `prepare` returns.
    """

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Stages the batch durably where no reader sees it. Returns a token by which `publish` finds it."""
        ...

    def publish(self, token: str) -> None:
        """Makes a committed batch visible. Idempotent."""
        ...

    def discard(self, token: str) -> None:
        """Deletes a prepared batch that was not committed. Idempotent."""
        ...

    def recover(self, context: SinkContext) -> None:
        """Removes what earlier runs have staged. Called once per run, after the last committed batch was published.

        So whatever is staged by this attempt or an earlier one is of a batch that will never be published. A sink that
        has not written to its target before, while another job has, raises SinkOccupiedError before it writes anything.

        Args:
            context: The last committed batch (batch_id -1 if there is none), and the attempt that starts.
        """
        ...


class DirectOutput(Protocol):
    """One batch of a sink that subtasks write to. It is pickled into their tasks."""

    @property
    def token(self) -> str:
        """The token by which `publish` and `discard` find the batch."""
        ...

    def write(self, subtask: SubtaskIndex, records: Iterator[pa.RecordBatch]) -> str | None:
        """Writes all rows of a subtask where no reader sees them. Runs in a task.

        Several tasks may write for the same subtask, at the same time or even after `gather`: their parts are kept
        apart.

        Returns:
            The name of the part that was written, for `gather`; None if there were no rows.
        """
        ...


class DirectStaging(Protocol):
    """Stages batches that subtasks write; replaces `prepare`. Its methods run on the driver."""

    def begin(self, context: SinkContext) -> DirectOutput:
        """Prepares the output of one try of a batch."""
        ...

    def gather(self, token: str, parts: Sequence[str]) -> None:
        """Stages the given parts durably. Parts that other tasks have written, or still write, are never published."""
        ...


@runtime_checkable
class DirectSink(Sink, Protocol):
    """A sink that subtasks may write to themselves, if it is the only reader of their operator's only output."""

    def direct(self, schema: pa.Schema) -> DirectStaging | None:
        """Returns the staging for rows of a schema; None if readers would see a difference to `prepare`.

        Called once per run.
        """
        ...


@runtime_checkable
class RefusingSink(Sink, Protocol):
    """A sink that may put rows aside as dead letters, because its system would refuse them."""

    def dead_letters_of(self, token: str) -> int:
        """Returns how many rows of a prepared batch are dead letters, from the token alone."""
        ...
