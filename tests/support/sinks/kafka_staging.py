"""Stages the records of a Kafka sink without Spark's expressions; all after it is the sink's own."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from keyscale.jobs.sinks import kafka
from tests.support.sinks.file_system import TableFrame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.jobs.sinks.kafka import KafkaSink
    from keyscale.jobs.sinks.sink import SinkContext

SHARES_MAX = 3
_SCHEMA = pa.schema([("value", pa.binary())])


def prepare(self: KafkaSink, frame: Any, context: SinkContext) -> str:
    """Plays `KafkaSink.prepare`, which refuses no record here."""
    place = (context.job_id, context.uid, context.batch_id, context.attempt, context.unique)
    token = kafka._Token(*place, "", topic=self._topic, staging=self._staging_path)
    staging = self._staging(token)
    frame.save(staging.path)
    token = kafka.with_shares(token, kafka._data_files(staging), self._writers or SHARES_MAX)
    return msgspec.json.encode(token).decode()


def records_of_shares(self: KafkaSink, key: Any, staging: Any) -> Iterator[Any]:  # noqa: ARG001 - a method's
    """Plays `KafkaSink._records_of_shares`."""
    for files in chain.from_iterable(kafka.rounds_of(key, kafka._data_files(staging))):
        texts = [staging.read_text(name) or "" for name in files]
        rows = [{"value": line.encode()} for text in texts for line in text.splitlines()]
        yield TableFrame(staging.spark, (pa.Table.from_pylist(rows, _SCHEMA),))
