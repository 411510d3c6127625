"""The cluster whose executors are killed in measurements of recovery."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.servers.spark_cluster import SparkCluster, running_spark_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKERS = 2
_MEMORY_MB = 1536


@contextmanager
def cluster_for(fault: str, work: Path, cores: int) -> Iterator[SparkCluster | None]:
    """Runs a cluster if its executors are to be killed.

    Args:
        fault: The fault.
        work: The folder of the measurement.
        cores: The number of cores of all workers.
    """
    if fault != "executor":
        yield None
        return
    each = max(1, cores // WORKERS)
    with running_spark_cluster(work / "stack", workers=WORKERS, cores=each, memory_mb=_MEMORY_MB) as cluster:
        yield cluster


def kill_executor(cluster: SparkCluster) -> None:
    """Kills an executor of the cluster, with its Python workers."""
    executor = next(iter(cluster.executors().values()))
    for process in (executor, *executor.children(recursive=True)):
        process.kill()
