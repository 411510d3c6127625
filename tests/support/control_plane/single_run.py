"""Evidence that of all attempts of a job never two ran it at a time: its commit log, and its processes."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil

from keyscale.identifiers import JobId
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.opening import open_store
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from keyscale.state.documents.log_entries import LogEntry

_VARIABLE = "KEYSCALE_ATTEMPT"


def check_commits(store_url: str, job_id: str) -> None:
    """Checks that no attempt did anything after a newer one had begun, and that each batch was committed once."""
    entries = read_log(store_url, job_id)
    attempts = [entry.attempt for entry in entries]
    assert attempts == sorted(attempts), "an older attempt wrote after a newer one"
    times = [
        entry.opened_at_ms if isinstance(entry, AttemptOpened) else entry.committed_at_ms
        for entry in entries
        if isinstance(entry, (AttemptOpened, BatchCommitted))
    ]
    assert times == sorted(times), "an older attempt was at work after a newer one had begun"
    batches = [entry.batch_id for entry in entries if isinstance(entry, BatchCommitted)]
    assert all(after == before + 1 for before, after in pairwise(batches)), "a batch was committed twice, or is missing"


def read_log(store_url: str, job_id: str) -> list[LogEntry]:
    """Returns the newest entries of a job's commit log, without the fences that clean-up leaves before them."""
    store, layout = open_store(store_url), Layout(JobId(job_id))
    found = [layout.log_position(info.path) for info in store.list(layout.log)]
    positions = sorted(position for position in found if position is not None)
    first = max((after for before, after in pairwise(positions) if after != before + 1), default=positions[0])
    return CommitLog(store, layout).between(first - 1, positions[-1])


def driver_processes(job_id: str) -> dict[int, list[psutil.Process]]:
    """Returns the processes of a job's drivers on this host, by attempt; not those that only watch over them."""
    found: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            job, _, attempt = process.environ().get(_VARIABLE, "").rpartition(":")
            is_driver = job == job_id and process.status() != psutil.STATUS_ZOMBIE and not _supervises(process)
        except (psutil.Error, ProcessLookupError):
            continue
        if is_driver:
            found.setdefault(int(attempt), []).append(process)
    return found


def kill_driver(job_id: str, attempt: int) -> None:
    """Kills the processes of an attempt's driver, as when its host runs out of memory.

    A driver that has just been launched may have no process yet but the one that watches over it.
    """
    victims = wait_until(lambda: driver_processes(job_id).get(attempt), what=f"a process of attempt {attempt}")
    for process in victims:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    psutil.wait_procs(victims, timeout=30)


def _supervises(process: psutil.Process) -> bool:
    return any(part.endswith("supervisor.py") for part in process.cmdline())
