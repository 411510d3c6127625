"""Coroutines in tests that are functions."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Returned = TypeVar("Returned")


def run_coroutine(coroutine: Coroutine[object, object, Returned]) -> Returned:
    """Runs a coroutine in a thread of its own.

    The main thread has Playwright's running event loop, from a process's first page test to its end.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()  # noqa: TID251 - in a thread without a loop
