"""The processes of a home directory, which the demo ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path


def processes_of(home: Path) -> list[psutil.Process]:
    """Returns the running processes that work on `home`.

    It finds drivers, their JVMs and Python workers, the control plane and PostgreSQL by their arguments, directory or
    environment, whatever their parents are. This process and its parents are never included.
    """
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [process for process in psutil.process_iter() if process.pid not in ours and _works_on(process, str(home))]


def end_processes(processes: list[psutil.Process], grace_s: float = 5.0) -> None:
    """Terminates processes; after `grace_s` seconds, kills the remaining ones."""
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
            texts = [*process.cmdline(), process.cwd(), *process.environ().values()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(home in text for text in texts)
