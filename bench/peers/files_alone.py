"""Spark reads the files and writes them back: what nothing that runs on Spark can be faster than."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.peers import spark
from bench.peers.task import DedupTask

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(**options: Any) -> Mapping[str, Any]:
    """Read and write, nothing else."""
    return spark.run(DedupTask(**options), lambda events: events)
