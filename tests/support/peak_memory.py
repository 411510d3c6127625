"""The most memory that a function takes, measured in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
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
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        return processes.submit(_measured, prepare, args).result(_WAIT_SECONDS)


def _measured(prepare: Callable[..., Callable[[], Any]], args: Any) -> int:
    function = prepare(*args)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again
    before = _bytes_of("VmRSS")
    function()
    return _bytes_of("VmHWM") - before


def _bytes_of(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024
