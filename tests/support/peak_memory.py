"""The most memory that a function takes, measured in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_WAIT_SECONDS = 300


def peak_growth_bytes(prepare: Callable[..., Callable[[], Any]], *args: Any) -> int:
    """Returns how far a process's memory went beyond that at the function's beginning.

    Args:
        prepare: Returns the function; its own memory does not count. A function of a module, to be pickled.
        args: For `prepare`.
    """
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[int] = context.Queue()
    process = context.Process(target=_measure, args=(answer, prepare, args))
    process.start()
    try:
        return answer.get(timeout=_WAIT_SECONDS)
    finally:
        process.terminate()
        process.join()


def _measure(answer: multiprocessing.Queue[int], prepare: Callable[..., Callable[[], Any]], args: Any) -> None:
    function = prepare(*args)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again
    before = _bytes_of("VmRSS")
    function()
    answer.put(_bytes_of("VmHWM") - before)


def _bytes_of(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024
