"""What every sink promises, and by which key.

A sink works in two phases around the commit of a batch: `prepare` writes where no reader looks and returns a token, which the
commit record names; `publish` makes what the token stands for visible. A driver that dies between the two publishes again at
its next start, so publishing the same token any number of times is publishing it once. What was prepared and never committed
is never published.

A sink may offer to be written to by the subtasks themselves (`DirectSink`), which spares Spark a turn of every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from state.identifiers import SubtaskIndex


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Which output this is. (job_id, uid, batch_id) is the key under which a batch may be visible once.

    Attributes:
        job_id: The job.
        uid: The sink's uid.
        batch_id: The batch.
        attempt: The fencing number; of two tries of a batch by different attempts only the higher one can commit.
        unique: What no other try of this batch has.
    """

    job_id: str
    uid: str
    batch_id: int
    attempt: int
    unique: str


class Sink(Protocol):
    """Takes each batch in two phases. All methods run on the driver."""

    reads_repeatedly: ClassVar[bool]
    """Whether `prepare` may evaluate its frame more than once; the batch is then kept until it has returned."""

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Writes the batch where no reader sees it, durably; returns what `publish` needs to find it again."""
        ...

    def publish(self, token: str) -> None:
        """Makes a committed batch visible. Idempotent."""
        ...

    def discard(self, token: str) -> None:
        """Forgets a prepared batch that was not committed. Idempotent."""
        ...

    def recover(self, context: SinkContext) -> None:
        """Removes what earlier attempts left: called once at start, after the last committed batch was published.

        Args:
            context: Of the batch committed last (-1: none), and of the attempt that starts.
        """
        ...


class DirectOutput(Protocol):
    """One batch of a sink, as its subtasks write it; pickled into their tasks."""

    @property
    def token(self) -> str:
        """What `publish` and `discard` find the batch by."""
        ...

    def write(self, subtask: SubtaskIndex, records: Iterator[pa.RecordBatch]) -> str | None:
        """Writes all rows of a subtask where no reader sees them; runs in a task.

        Several tasks may do so for one subtask, even at once or after `gather`: what they write stays apart.

        Returns:
            The part that was written, for `gather`; None if there were no rows.
        """
        ...


class DirectStaging(Protocol):
    """Stages batches that subtasks write, in the place of `prepare`. Its methods run on the driver."""

    def begin(self, context: SinkContext) -> DirectOutput:
        """Makes room for one try of a batch."""
        ...

    def gather(self, token: str, parts: Sequence[str]) -> None:
        """Stages the parts that count, durably; whatever else tasks have written, or still write, is never published."""
        ...


@runtime_checkable
class DirectSink(Sink, Protocol):
    """A sink that subtasks may write to themselves, where it alone reads the only output of their operator."""

    def direct(self, schema: pa.Schema) -> DirectStaging | None:
        """How they do it with rows of a schema; None if `prepare` must, as readers would see a difference. Asked once a run."""
        ...
