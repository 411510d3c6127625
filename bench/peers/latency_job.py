"""The latency benchmark's job as a user of Keyscale writes it."""

from __future__ import annotations

from bench.peers.latency_task import source_frame
from keyscale import FileSink, StreamEnvironment


def main() -> None:
    """Declares the job and runs it until it is stopped."""
    env = StreamEnvironment.current()
    env.set_batch_interval(int(env.parameters["batch_interval_ms"]))
    records = source_frame(env.spark, env.parameters)
    events = env.stream(records.selectExpr("CAST(value AS STRING) AS id", "unix_millis(timestamp) AS sent_ms"))
    kept = events.key_by("id").deduplicate().uid("first-of-key")
    kept.sink_to(FileSink(env.parameters["output"])).uid("files")
    env.execute()


if __name__ == "__main__":
    main()
