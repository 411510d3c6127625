"""Spark reading and writing the files, the limit for Spark's contenders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.peers import spark
from bench.peers.task import DedupTask

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(**options: Any) -> Mapping[str, Any]:
    """Reads and writes, nothing else."""
    return spark.run(DedupTask(**options), lambda events: events)
