"""Ends all processes that tests have started when their pytest ends, even when pytest is killed.

Benchmarks run below it, too.

    the process that the user started      waits for the reaper, and exits as pytest does
      reaper                               in a session of its own, so that a signal to the group spares it
        pytest                             workers, servers, drivers and Java below it

A process whose parent dies becomes the reaper's child, so the reaper finds all of them below itself. The reaper waits
for each one, so that the processor time which the kernel reports for the reaper holds all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

PARENT_DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36  # of <linux/prctl.h>


def is_program() -> bool:
    """Whether this process was started as pytest; a program that calls pytest, such as mutmut, expects it to return."""
    started = Path(sys.argv[0])
    return started.name == "pytest" or started.parts[-2:] == ("pytest", "__main__.py")


def continue_below_reaper() -> None:
    """Returns in a child process below a new reaper; this process waits for it and exits with its status."""
    started = os.getpid()
    reaper = os.fork()
    if reaper:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest gets it, too, and decides
        status = os.waitstatus_to_exitcode(os.waitpid(reaper, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    _control_process(CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the reaper's program can handle it
    _control_process(PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != started:  # the parent died before the line above
        os._exit(1)
    reaper = os.getpid()
    pytest = os.fork()
    if pytest == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _control_process(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != reaper:
            os._exit(1)
        return
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(pytest)])  # noqa: S606 - this file


def reap(pytest: int) -> int:
    """Waits until pytest has ended, ends all that it has left, and returns its status as a shell does."""
    signal.signal(signal.SIGTERM, lambda *_: _kill(pytest))  # the process that was started has died
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    ended, status = os.wait()
    while ended != pytest:
        ended, status = os.wait()
    left = descendants()
    if left:
        sys.stderr.write(f"keyscale: ends processes that are left: {', '.join(left.values())}\n")
    while left:
        for pid in left:
            _kill(pid)
        os.wait()
        left = descendants()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def descendants() -> dict[int, str]:
    """Returns the name of each process below this one by its id."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            before, _, after = (entry / "stat").read_text().rpartition(") ")
        except OSError:  # it has just ended
            continue
        parents[int(entry.name)] = int(after.split()[1])
        names[int(entry.name)] = before.partition("(")[2]
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in sorted(found - {os.getpid()})}


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _control_process(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(reap(int(sys.argv[1])))
