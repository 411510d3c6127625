"""What a source in Python has to say; everything else (durable positions, tasks, exactly once) is done for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from jobs.output_schema import Schema

Position: TypeAlias = int | str | dict[str, int | str]
"""Where in a split reading stands. What it means is the source's own; it is kept as JSON."""


class Source(ABC):
    """Records in splits, each of which can be read again from any position that it was once read from.

    A batch is planned on the driver before it runs: `discover` and `latest` say from where to where each split is read. The plan
    is durable in the job's commit log before any record is read, and part of every checkpoint and savepoint. Then `read` is
    called in the executors, and has to give the same records whenever it is called with the same arguments: after a failed
    task, after a crash, at another parallelism. So every record has its effect exactly once.

    The source is pickled. It is opened anew in the planner's process and in each task: connections are made at first use and
    are no part of its pickled state.
    """

    discovery_interval_ms: int = 30_000
    """How long the planner goes by the splits that it knows of before it asks for new ones."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The records' columns."""

    @abstractmethod
    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        """The splits that are there and not known yet, each with the position at which to begin.

        Args:
            known: Splits that the job has positions of; empty when it reads from the source for the first time. A split is known
                for ever, also when it is gone.
        """

    @abstractmethod
    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        """How far the next batch reads each split.

        Args:
            positions: Of each known split, up to where it has been read.
            limit: How many records the batch may have, if the job limits them; see `limited` for positions that are counts.

        Returns:
            Positions by split; those left out stay where they are.
        """

    @abstractmethod
    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        """The records of a split from one position up to, and without, another one; see above on repeating it.

        Raises:
            KeyscaleError: It cannot be read. Anything else that is raised fails the batch, too, without its message.
        """

    def close(self) -> None:  # noqa: B027 - few sources have anything to close
        """Called in the planner's process when the job ends."""
