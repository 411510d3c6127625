"""The Keyscale program that goes on where a Spark query has stopped."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET

from keyscale.identifiers import OperatorUid
from keyscale.jobs.operators.approximate_deduplicate import ApproximateDeduplicate
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.window_operator import Windowing
from keyscale.jobs.protocol.program import ProgramQuestion
from keyscale.jobs.runtime.driver.program_loader import declared_operators
from keyscale.jobs.runtime.preparation.artifact import LocalArtifact
from keyscale.jobs.runtime.preparation.declaration import declare
from keyscale.jobs.sources.kafka import KafkaSource
from keyscale.jobs.sources.source_reader import source_of
from keyscale.jobs.spark_internals.source_inputs import kinds_of
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.state.doors.commits import EventTime, JobTime

from .input_positions import KAFKA_SOURCE, TargetSource
from .spark_operator import OperatorKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from keyscale.jobs.graph.nodes import OperatorNode
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.operators.operator_contract import OperatorLogic
    from keyscale.state.doors.writing import KeyedSchema

    from .spark_checkpoint import BatchFacts


@dataclass(frozen=True, slots=True)
class TargetOperator:
    """An operator of the program.

    Attributes:
        uid: Its uid.
        logic: Its logic.
        schema: The key, and the states and timers that it declares when it is opened.
        ttls_ms: The time to live of each state with a TTL.
    """

    uid: str
    logic: OperatorLogic
    schema: KeyedSchema
    ttls_ms: Mapping[str, int]

    @property
    def key(self) -> pa.Schema:
        """The columns of its key."""
        return self.schema.key_schema()

    @property
    def has_compact_keys(self) -> bool:
        """Whether it stores hashes or filters instead of keys."""
        return isinstance(self.logic, ApproximateDeduplicate) or (
            isinstance(self.logic, Deduplicate) and self.logic.hashed
        )

    def continues(self, kind: OperatorKind) -> bool:
        """Returns whether it is the usual counterpart of a Spark operator."""
        is_deduplication = isinstance(self.logic, (Deduplicate, ApproximateDeduplicate))
        match kind:
            case OperatorKind.DEDUPLICATION | OperatorKind.DEDUPLICATION_WITHIN_WATERMARK:
                return is_deduplication
            case OperatorKind.PROCESSOR:
                return isinstance(self.logic, TransformWithState)
            case OperatorKind.AGGREGATION | OperatorKind.GROUP_STATE:
                return not is_deduplication and not isinstance(self.logic, TransformWithState)

    @property
    def windowing(self) -> Windowing | None:
        """Its windows; None if it has none."""
        return self.logic if isinstance(self.logic, Windowing) else None


@dataclass(frozen=True, slots=True)
class TargetProgram:
    """A loaded program: its operators, sources and graph."""

    operators: tuple[TargetOperator, ...]
    sources: tuple[TargetSource, ...]
    topology: Topology

    @classmethod
    def load(cls, spark: SparkSession, program: Path, parameters: Mapping[str, str]) -> TargetProgram:
        """Runs a program's script up to `env.execute()`, in this process.

        Raises:
            KeyscaleError: The script cannot run, raised, or declares no job that can run.
        """
        main = sys.modules["__main__"]
        try:
            topology, _ = declare(spark, LocalArtifact(program), parameters)
            operators = target_operators(topology)
        finally:
            sys.modules["__main__"] = main
        sources = (TargetSource(node.uid, tuple(map(_known_kind, kinds_of(node.frame)))) for node in topology.sources)
        return cls(operators, tuple(sources), topology)

    def time_after(self, batch: BatchFacts) -> JobTime:
        """Returns the job's time after a batch of a Spark query.

        Keyscale's watermark is one millisecond earlier than Spark's: it is the last time that has passed.
        """
        times = {}
        for node in self.topology.operators:
            if (time := _event_time(self.topology, node, batch)) is not None:
                times[OperatorUid(node.uid)] = time
        return JobTime(times, 0, batch.timestamp_ms)


def target_operators(topology: Topology) -> tuple[TargetOperator, ...]:
    """Opens each operator on empty state; returns its declaration.

    Raises:
        KeyscaleError: An operator cannot be opened.
    """
    declared = declared_operators(topology, ProgramQuestion("", {}, max_parallelism=1, parallelism=1))
    return tuple(
        TargetOperator(each.uid, node.logic, each.declaration.schema, each.ttls_ms)
        for node, each in zip(topology.operators, declared, strict=True)
        if each.declaration.schema is not None
    )


def _event_time(topology: Topology, node: OperatorNode, batch: BatchFacts) -> EventTime | None:
    """Returns the time that gives the next batch Spark's watermark."""
    arrivals = topology.arrivals(node)
    reached = {
        each.name: batch.next_watermark_ms + each.bound_ms
        for each in arrivals
        if batch.next_watermark_ms and each.timestamp_column is not None and not each.follows_operator
    }
    if not reached and not any(each.follows_operator for each in arrivals):
        return None
    watermark_ms = batch.watermark_ms - 1 if batch.watermark_ms else None
    origins = reached if len(arrivals) > 1 and reached else UNSET
    time = EventTime(max(reached.values(), default=None), watermark_ms, origins)
    return None if time == EventTime() else time


def _known_kind(stream: str) -> str:
    return KAFKA_SOURCE if isinstance(source_of(stream), KafkaSource) else stream
