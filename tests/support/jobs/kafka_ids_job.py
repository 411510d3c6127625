"""The values of a Kafka topic, without repetitions, to files."""

from __future__ import annotations

from keyscale import FileSink, KafkaSource, StreamEnvironment

env = StreamEnvironment.current()
records = env.read(KafkaSource(env.parameters["servers"], env.parameters["topic"]), max_records_per_batch=100)
values = env.stream(records.selectExpr("CAST(value AS STRING) AS id"))
values.key_by("id").deduplicate().uid("unique").sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
