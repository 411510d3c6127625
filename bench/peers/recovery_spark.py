"""Faults of Spark's own deduplication, and the time to its next commit.

A query whose driver was killed is started again at once.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers import spark
from bench.peers.commits import longest_wait_ms
from bench.peers.paced_job import COMMITS_BEFORE, FILES_PER_BATCH, ChangeFailedError, PacedInput, fill
from bench.peers.recovery_cluster import cluster_for, kill_executor
from bench.peers.spark_drop_duplicates import first_within_watermark

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_SECONDS = 600.0
_POLL_SECONDS = 0.01


def run(*, work: str, keys: int, cores: int, fault: str, faults: int) -> Mapping[str, Any]:
    """Measures a query with state that is hit by a fault.

    Args:
        work: A fresh folder.
        keys: UUIDs number 0 to `keys` are in the state before the first fault.
        cores: The number of cores.
        fault: `driver` kills the driver, `executor` an executor of a cluster.
        faults: The number of faults.

    Returns:
        `recovery_ms`, the median of the longest wait for a commit after the fault, and `recovery_ms_max`; `start_ms`,
            from the first start to its commit.

    Raises:
        ChangeFailedError: The query did not commit.
    """
    source = Path(work, "input")
    source.mkdir()
    fill(source, keys)
    queries: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        if queries:
            os.killpg(queries[-1].pid, signal.SIGKILL)
            queries[-1].wait()
        command = [sys.executable, "-m", "bench.peers.recovery_spark", work, str(cores), master]
        queries.append(subprocess.Popen(command, start_new_session=True))  # noqa: S603 - our own module

    recovery_ms = []
    with cluster_for(fault, Path(work), cores) as cluster, PacedInput(source, keys):
        master = f"local[{cores}]" if cluster is None else cluster.master
        befall = begin if cluster is None else partial(kill_executor, cluster)
        try:
            commits = partial(_commits, Path(work))
            start_ms = longest_wait_ms(begin, commits, following=1)
            for _ in range(faults):
                _wait_for_commits(Path(work), _commits(Path(work)) + COMMITS_BEFORE)
                recovery_ms.append(longest_wait_ms(befall, commits))
        finally:
            for query in queries:
                if query.poll() is None:
                    os.killpg(query.pid, signal.SIGKILL)
                    query.wait()
    return {
        "recovery_ms": statistics.median(recovery_ms),
        "recovery_ms_max": max(recovery_ms),
        "start_ms": start_ms,
    }


def query(work: str, cores: int, master: str) -> None:
    """Runs the query until it is killed."""
    session = spark.session(f"{work}/{os.getpid()}", cores, master=master)
    rows = session.readStream.schema(spark.SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH)
    kept = first_within_watermark(rows.parquet(f"{work}/input"))
    writer = kept.writeStream.format("parquet").option("checkpointLocation", f"{work}/checkpoint")
    writer.start(f"{work}/output").awaitTermination()


def _commits(work: Path) -> int:
    """Returns the number of the last committed batch; -1: none."""
    return max((int(file.name) for file in work.glob("checkpoint/commits/[0-9]*")), default=-1)


def _wait_for_commits(work: Path, batch: int) -> None:
    give_up = time.monotonic() + LIMIT_SECONDS
    while _commits(work) < batch:
        if time.monotonic() > give_up:
            raise ChangeFailedError(f"no commit within {LIMIT_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    query(sys.argv[1], int(sys.argv[2]), sys.argv[3])
