"""A standalone Spark cluster of real processes on loopback, started and stopped by a test."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil

from keyscale.api.cli.process import free_port
from tests.support.drivers.driver_process import command_line
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SCRIPT = ROOT / "deploy" / "stack" / "spark-cluster"


@dataclass(slots=True)
class SparkCluster:
    """The script of the local stack, on a directory and ports of its own."""

    directory: Path
    port: int = field(default_factory=free_port)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def run(self, *arguments: str) -> None:
        environment = {
            **os.environ,
            **self.variables,
            "KEYSCALE_VENV": sys.prefix,
            "KEYSCALE_STACK_DIR": str(self.directory),
            "KEYSCALE_STACK_SPARK_PORT": str(self.port),
        }
        done = subprocess.run(
            [SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stderr

    def processes(self) -> list[psutil.Process]:
        """The master, the workers and all that they have started."""
        pids = [int(file.read_text().split()[0]) for file in self.directory.glob("*.pid")]
        roots = [psutil.Process(pid) for pid in pids]
        return [each for root in roots for each in (root, *root.children(recursive=True))]

    def executors(self, application: str = "") -> dict[str, psutil.Process]:
        """The JVMs that run tasks, by executor id; of one application, if its id is given."""
        found = {}
        for process in self.processes():
            line = command_line(process)
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" not in line:
                continue
            options = dict(pairwise(line))
            if application in {"", options["--app-id"]}:
                found[options["--executor-id"]] = process
        return found


@contextmanager
def running_spark_cluster(
    directory: Path, *, workers: int, cores: int, memory_mb: int, variables: Mapping[str, str] | None = None
) -> Iterator[SparkCluster]:
    """A master and workers that are registered with it; executors have their further environment variables."""
    cluster = SparkCluster(directory, variables=variables or {})
    try:
        cluster.run("start", "--workers", str(workers), "--cores", str(cores), "--memory-mb", str(memory_mb))
        yield cluster
    finally:
        cluster.run("stop")
