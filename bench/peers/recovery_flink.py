"""Faults of Flink's deduplication, and the longest wait for a commit after.

A taskmanager that was killed is started again at once.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.commits import longest_wait_ms
from bench.peers.flink_session import FlinkSession
from bench.peers.paced_job import (
    COMMITS_BEFORE,
    NEW_PER_FILE,
    PacedInput,
    fill,
    rows_in,
    wait_for_rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run(
    *, work: str, keys: int, cores: int, faults: int, spares: int, python: str, jars: Sequence[str]
) -> Mapping[str, Any]:
    """Measures a job whose taskmanager is killed several times.

    Args:
        work: A fresh folder.
        keys: UUIDs number 0 to `keys` are in the state before the first fault.
        cores: The job's parallelism, and the slots of each taskmanager.
        faults: The number of faults.
        spares: The number of taskmanagers without work.
        python: The interpreter of the Flink environment.
        jars: Flink's Parquet format.

    Returns:
        `recovery_ms`, the median of the longest waits for a commit after a fault, and `recovery_ms_max`; `start_ms`,
        from the submission to the first commit; and `output_rows` with the right number, `expected_rows`.
    """
    with FlinkSession(Path(work), python, jars, slots=cores, task_managers=1 + spares) as session:
        files = session.files
        fill(session.source, keys)
        with PacedInput(session.source, keys) as records:
            start_ms = longest_wait_ms(lambda: session.submit(cores), session.commits, following=1)
            wait_for_rows(files, keys)
            recovery_ms = []
            for _ in range(faults):
                session.wait_for_task_managers()
                longest_wait_ms(lambda: None, session.commits, following=COMMITS_BEFORE)
                recovery_ms.append(longest_wait_ms(session.kill_task_manager, session.commits))
            expected = keys + records.end() * NEW_PER_FILE
            wait_for_rows(files, expected)
        return {
            "recovery_ms": statistics.median(recovery_ms),
            "recovery_ms_max": max(recovery_ms),
            "start_ms": start_ms,
            "output_rows": rows_in(files()),
            "expected_rows": expected,
        }
