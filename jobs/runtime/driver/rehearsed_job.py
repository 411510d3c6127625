"""The tiny job that warms a spare driver up."""

from __future__ import annotations

from keyscale import FileSink, StreamEnvironment


def main() -> None:
    """Declares the job and runs it until it is stopped."""
    env = StreamEnvironment.current()
    rows = env.spark.readStream.schema("key string, value long").json(env.parameters["input"])
    kept = env.stream(rows).key_by("key", "value").deduplicate().uid("keyscale-rehearsal")
    kept.sink_to(FileSink(env.parameters["output"])).uid("keyscale-rehearsal-files")
    env.execute()


if __name__ == "__main__":
    main()
