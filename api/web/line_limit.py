"""Limits log lines for refused requests, to protect the disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keyscale.units import counted

from ..access.rates import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable

PER_SECOND = 20.0
BURST = 1000.0


class LineLimit(logging.Filter):
    """Limits a logger's lines and reports how many were omitted.

    The next line that is logged has the number.

    Args:
        applies: Which lines count, and may be omitted; other lines are always logged.
        limit: The limit.
    """

    def __init__(self, applies: Callable[[logging.LogRecord], bool], limit: RateLimit | None = None) -> None:
        super().__init__()
        self._applies = applies
        self._limit = limit or RateLimit(per_second=PER_SECOND, burst=BURST)
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._applies(record):
            return True
        if self._limit.take("") > 0:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = (
                f"{record.getMessage()} ({counted(self._left_out, 'line')} before it left out)",
                (),
            )
            self._left_out = 0
        return True
