"""A profile of Python workers: samples of their stacks, counted."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from ...spark_internals.live_executors import executors_elsewhere
from ..errors import NoLocalWorkerError
from ..executor.worker_stacks import SAMPLES
from .local_workers import local_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...spark_internals.live_executors import LiveExecutor
    from .local_workers import LocalWorker

_INTERVAL_SECONDS = 0.02
_NOT_ASKED = "Its Python workers are not in the profile: the driver cannot ask other hosts."
_SAMPLE = re.compile(r"^Stack \(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line \d+ in (.*)$', re.MULTILINE)


def profile(
    workers: str, seconds: float, executors: Callable[[], Sequence[LiveExecutor]]
) -> dict[str, Callable[[], str]]:
    """Returns how to profile each Python worker on this host.

    A sentence in the place of stacks names each executor on another host.

    Args:
        workers: The name by which the Python workers offer their stacks.
        seconds: How long to take samples, fifty per second.
        executors: Returns the executors of the job.

    Raises:
        NoLocalWorkerError: The job has no Python worker on this host.
    """
    found = local_workers(workers)
    if not found:
        raise NoLocalWorkerError("the job has no Python worker on the driver's host; the driver asks no other host")
    elsewhere = {f"executor {each.id} on {each.host}": lambda: _NOT_ASKED for each in executors_elsewhere(executors())}
    return {**{each.title: partial(folded_stacks, each, seconds) for each in found}, **elsewhere}


def folded_stacks(worker: LocalWorker, seconds: float) -> str:
    """Returns a worker's stacks over some time, with their numbers of samples.

    Each line is a stack, the outermost function first, with `;` between functions, and its number: flame graph tools
    read this form.
    """
    worker.empty(SAMPLES)
    until = time.monotonic() + seconds
    while time.monotonic() < until and worker.ask(SAMPLES):
        time.sleep(_INTERVAL_SECONDS)
    return folded(worker.read(SAMPLES))


def folded(samples: str, roots: Iterable[str] = ()) -> str:
    """Counts equal stacks in the output of `faulthandler`.

    `roots` are the directories of modules, which are left out of paths; by default those of this process.
    """
    directories = sorted(roots or filter(None, sys.path), key=len, reverse=True)
    stacks = Counter(
        ";".join(_label(path, function, directories) for path, function in reversed(frames))
        for sample in _SAMPLE.split(samples)[1:]
        if (frames := _FRAME.findall(sample))
    )
    return "".join(f"{stack} {count}\n" for stack, count in stacks.most_common())


def _label(path: str, function: str, directories: Iterable[str]) -> str:
    prefixes = (f"{each}/" for each in directories)
    prefix = next((each for each in prefixes if path.startswith(each)), "")
    return f"{function} ({path.removeprefix(prefix)})".replace(";", ",")
