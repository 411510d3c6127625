"""A job's graph over a recorded batch.

Spark runs the transforms, and this process the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from keyscale.jobs.operators.broadcast_rows import collected
from keyscale.jobs.runtime.batch.frames import BatchFrames
from keyscale.jobs.runtime.batch.keyed_records import KeyedRecords
from keyscale.jobs.runtime.executor.side_outputs import wire_schema
from keyscale.jobs.spark_internals.affinity import PlacementDataset
from keyscale.jobs.spark_internals.arrow_schemas import spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from keyscale.identifiers import OperatorUid
    from keyscale.jobs.graph.nodes import OperatorNode
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.runtime.batch.frames import OperatorInputs
    from keyscale.jobs.runtime.batch.job_sources import JobSources
    from keyscale.state.doors.reading import RecordedBatch

    from .replayed_operators import ReplayedOperators


def replay_graph(
    spark: SparkSession,
    topology: Topology,
    batch: RecordedBatch,
    operators: ReplayedOperators,
    *,
    sources: JobSources,
    records: DataFrame | None,
) -> dict[OperatorUid, pa.Table]:
    """Runs a batch through the graph.

    Args:
        spark: The session.
        topology: The program.
        batch: The batch.
        operators: Runs the operators.
        sources: The sources.
        records: The records of the sources; None for a batch of time alone.

    Returns:
        The rows that each sink would get.

    Raises:
        KeyscaleError: A function or Spark failed.
    """
    session = spark if records is None else records.sparkSession
    placement = PlacementDataset.create(session, batch.parallelism)
    keyed = KeyedRecords(topology, placement, ranges=batch.ranges, hash_id=batch.before.hash_id)

    def emitted(node: OperatorNode, inputs: Callable[[], OperatorInputs]) -> DataFrame:
        given = inputs()
        broadcast = b"" if given.broadcast is None else collected(given.broadcast)
        moved = keyed.moved(node, given).toArrow()
        outputs = operators.run(node, [each for each in moved.to_batches() if each.num_rows], broadcast)
        wire = wire_schema(node.schema, node.side_outputs)
        return session.createDataFrame(pa.Table.from_batches(outputs, wire), spark_schema_of(wire))

    frames = BatchFrames(topology, emitted)
    try:
        of_sources = sources.empty(spark) if records is None else sources.split(records, frames.keep)
        inputs = frames.build(of_sources)
        return {node.uid: inputs[node.input].toArrow() for node in topology.sinks}
    finally:
        frames.release()
        placement.release()
