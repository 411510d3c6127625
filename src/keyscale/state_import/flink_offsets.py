"""The positions of a Kafka source in a Flink savepoint."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from .errors import FlinkSavepointError, ImportUnsupportedError
from .java_data import JavaData
from .spark_checkpoint import BatchFacts, SparkCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .flink_metadata import ElementsFile, FlinkOperator

_STATE = "SourceReaderState"
"""The list state in which each reader of a source of Flink keeps its splits."""
_SPLIT_VERSION = 0

Offsets = dict[str, dict[str, int]]
"""The next offset of each partition, by topic: the form of Spark's connector."""


def kafka_offsets(operator: FlinkOperator) -> Offsets | None:
    """Returns the next offset of each partition; None for another operator.

    Raises:
        FlinkSavepointError: The splits are damaged, or a partition is in two readers.
        ImportUnsupportedError: The splits are of another source, or a partition has no offset yet.
    """
    if not any(_STATE in file.offsets for file in operator.elements):
        return None
    found: Offsets = {}
    for file in operator.elements:
        for topic, partition, offset in _splits(file):
            of_topic = found.setdefault(topic, {})
            if str(partition) in of_topic:
                raise FlinkSavepointError(f"two readers of Flink have partition {partition} of topic {topic!r}")
            if offset < 0:
                raise ImportUnsupportedError(f"Flink has not read partition {partition} of topic {topic!r} yet")
            of_topic[str(partition)] = offset
    return found


def _splits(file: ElementsFile) -> Iterator[tuple[str, int, int]]:
    """Yields the topic, the partition and the next offset of each split."""
    size = file.file.size_bytes
    with file.file.open() as stream:
        for offset in file.offsets.get(_STATE, ()):
            if not 0 <= offset <= size:
                raise FlinkSavepointError("the file is damaged: a split begins outside of it")
            stream.seek(offset)
            element = JavaData.of(JavaData(stream, size - offset).block())
            version = element.int32()
            split = JavaData.of(element.block())
            try:
                topic, partition, position, _stop = split.utf(), split.int32(), split.int64(), split.int64()
            except FlinkSavepointError:
                raise ImportUnsupportedError("the splits come from another source than Flink's KafkaSource") from None
            if version != _SPLIT_VERSION or not split.is_at_end or partition < 0:
                raise ImportUnsupportedError("the splits come from another source than Flink's KafkaSource")
            yield topic, partition, position


def as_query(offsets: Sequence[Offsets], at_ms: int) -> SparkCheckpoint:
    """Returns positions in the form of a Spark query after one batch.

    Args:
        offsets: The offsets of each input.
        at_ms: The time of the batch.
    """
    ends = tuple(json.dumps(each, separators=(",", ":")) for each in offsets)
    facts = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_ms, "conf": {}}, separators=(",", ":"))
    files = {
        "metadata": json.dumps({"id": str(uuid.uuid4())}),
        "offsets/0": "\n".join(["v1", facts, *ends]),
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }
    return SparkCheckpoint("", BatchFacts(0, 0, 0, at_ms), files, ends)
