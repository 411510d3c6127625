"""Which processes belong to a home directory: so that nothing that the demo has started outlives it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path


def processes_of(home: Path) -> list[psutil.Process]:
    """Returns the running processes that work on `home`: by their arguments, directory or environment.

    That finds drivers, their JVMs and Python workers, the control plane and PostgreSQL with its own processes, whoever
    their parents are; never this process nor those above it.
    """
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [process for process in psutil.process_iter() if process.pid not in ours and _works_on(process, str(home))]


def end_processes(processes: list[psutil.Process], grace_s: float = 5.0) -> None:
    """Ends processes: asks first, kills those that are still there after `grace_s` seconds."""
    for signal_them in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            try:
                signal_them(process)
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, timeout=grace_s)


def _works_on(process: psutil.Process, home: str) -> bool:
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            told = [*process.cmdline(), process.cwd(), *process.environ().values()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(home in text for text in told)
