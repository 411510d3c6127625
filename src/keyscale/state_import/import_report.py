"""The report of an import."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ImportedState:
    """A state that was taken over.

    Attributes:
        spark_operator: The number of the Spark operator.
        spark_state: The name of its state; empty for an operator with one store.
        uid: The operator of the program.
        state: The state or the timers of the program's operator.
        rows: The number of Spark's rows; None if they were not counted.
        entries: The number of entries in the savepoint; None if none was written.
    """

    spark_operator: int
    spark_state: str
    uid: str
    state: str
    rows: int | None = None
    entries: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedSource:
    """An input whose positions were taken over.

    Attributes:
        spark_input: The number of the input of the Spark query.
        uid: The source of the program.
        end: Where the source goes on, as Spark records it.
    """

    spark_input: int
    uid: str
    end: str | None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import.

    Attributes:
        location: The location of the savepoint; None after a dry run.
        batch: The last committed batch of the Spark query, whose state was taken.
        watermark_ms: The watermark of the query's next batch; None without one.
        states: The states that were taken over.
        sources: The inputs whose positions were taken over.
        notes: What was left out or begins anew, and why.
    """

    location: str | None
    batch: int
    watermark_ms: int | None
    states: tuple[ImportedState, ...]
    sources: tuple[ImportedSource, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ImportedFlinkState:
    """A state of Flink that was taken over.

    Attributes:
        flink_operator: The id of the Flink operator.
        flink_state: The name of its state.
        uid: The operator of the program.
        state: The state or the timers of the program's operator.
        rows: The number of Flink's values, map entries, list elements or timers; None if they were not counted.
        entries: The number of entries in the savepoint; None if none was written.
    """

    flink_operator: str
    flink_state: str
    uid: str
    state: str
    rows: int | None = None
    entries: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedFlinkSource:
    """A Kafka source of Flink whose positions were taken over.

    Attributes:
        uid: The source of the program.
        end: The next offset of each partition, by topic.
    """

    uid: str
    end: str


@dataclass(frozen=True, slots=True)
class FlinkImportReport:
    """The result of an import from Flink.

    Attributes:
        location: The location of the savepoint; None after a dry run.
        states: The states that were taken over.
        sources: The sources whose positions were taken over.
        notes: What was left out or begins anew, and why.
    """

    location: str | None
    states: tuple[ImportedFlinkState, ...]
    sources: tuple[ImportedFlinkSource, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return asdict(self)
