"""Spark's dropDuplicates from a topic into files, without pauses between batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from bench.peers import spark
from bench.peers.latency_task import LatencyTask, produce, source_frame, wait_for_all

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(**options: Any) -> Mapping[str, Any]:
    """Runs the query and the producer, and observes each row's visibility."""
    task = LatencyTask(**options)
    session = spark.session(task.work, task.cores, jars=task.connector_jars)
    records = source_frame(session, task.source_parameters())
    events = records.selectExpr("CAST(value AS STRING) AS id", "unix_millis(timestamp) AS sent_ms")
    writer = events.dropDuplicates(["id"]).writeStream.format("parquet")
    query = writer.option("checkpointLocation", f"{task.work}/checkpoint").start(str(task.output))
    produce(task)
    answer = wait_for_all(task, lambda: _visible(task.output))
    query.stop()
    session.stop()
    return answer


def _visible(output: Path) -> dict[Path, float]:
    """Returns the visible files with their times.

    A file is visible once the sink's log names it.
    """
    seen: dict[Path, float] = {}
    logs = [log for log in (output / "_spark_metadata").glob("[0-9]*") if not log.name.endswith(".tmp")]
    for log in sorted(logs, key=lambda log: int(log.name.removesuffix(".compact"))):
        at_seconds = log.stat().st_ctime
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            file = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            seen.setdefault(file, at_seconds)
    return seen
