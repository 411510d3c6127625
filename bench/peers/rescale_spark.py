"""Rescales of Spark's deduplication, by its offline repartition of state."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from bench.peers import spark
from bench.peers.paced_job import FILES_PER_BATCH, names_in
from bench.peers.rescaled_peer import rescale_peer
from bench.peers.spark_drop_duplicates import first_within_watermark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
TRIGGER = "500 milliseconds"
"""An interval between batches, in which a query can be stopped."""
_POLL_SECONDS = 0.01
_NEVER = 1_000_000
"""A repartition takes a batch number without an entry in the sink's log, and the log's compaction fails without it."""


def run(*, work: str, keys: int, parallelisms: Sequence[int]) -> Mapping[str, Any]:
    """Rescales a query; see `rescale_peer`.

    Args:
        work: A fresh folder.
        keys: The number of keys in the state before the first rescale.
        parallelisms: The numbers of state partitions, in order.
    """
    source = Path(work, "input")
    source.mkdir()
    return rescale_peer(_Peer(Path(work), max(parallelisms)), source, keys, parallelisms)


class _Peer:
    def __init__(self, work: Path, cores: int) -> None:
        self._work = work
        self._output = work / "output"
        self._log = self._output / "_spark_metadata"
        self._checkpoint = work / "checkpoint"
        self._session = spark.session(str(work), cores)
        self._session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", _NEVER)

    def start(self, parallelism: int) -> None:
        self._session.conf.set("spark.sql.shuffle.partitions", parallelism)
        self._begin()

    def rescale(self, parallelism: int) -> None:
        self._stop()
        repartition = self._session._streamingCheckpointManager.repartition  # the only way to it
        repartition(str(self._checkpoint), parallelism)
        self._begin()  # the checkpoint has the number of partitions

    def commits(self) -> int:
        return 1 + max((int(name.partition(".")[0]) for name in names_in(self._log) if name[0] != "."), default=-1)

    def files(self) -> Iterable[Path]:
        logs = [file.read_text(encoding="utf-8") for file in self._log.glob("[0-9]*")]
        uris = {json.loads(line)["path"] for log in logs for line in log.splitlines()[1:]}
        return [Path(unquote(urlsplit(uri).path)) for uri in uris]

    def state_bytes(self) -> int:
        progress = self._query.lastProgress
        return 0 if progress is None else int(progress["stateOperators"][0]["customMetrics"]["rocksdbSstFileSize"])

    def _begin(self) -> None:
        rows = self._session.readStream.schema(spark.SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH)
        kept = first_within_watermark(rows.parquet(str(self._work / "input")))
        writer = kept.writeStream.format("parquet").option("checkpointLocation", str(self._checkpoint))
        self._query = writer.trigger(processingTime=TRIGGER).start(str(self._output))

    def _stop(self) -> None:
        """Stops the query between two batches, as a repartition requires."""
        while True:
            batch = self._last("commits")
            while self._last("commits") == batch:
                time.sleep(_POLL_SECONDS)
            self._query.stop()
            if self._last("offsets") == self._last("commits"):
                return
            self._begin()

    def _last(self, log: str) -> int:
        return max((int(file.name) for file in self._checkpoint.glob(f"{log}/[0-9]*")), default=-1)
