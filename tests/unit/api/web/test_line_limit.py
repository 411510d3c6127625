"""The limit of log lines: many refusals leave few lines, and nothing else is left out."""

from __future__ import annotations

import logging

from keyscale.api.access.rates import RateLimit
from keyscale.api.web.line_limit import LineLimit


def test_lines_beyond_the_limit_are_left_out_and_counted_and_others_always_go_through() -> None:
    now_s, shown = 0.0, []
    limit = RateLimit(per_second=1, burst=2, clock=lambda: now_s)
    lines = LineLimit(lambda record: record.levelno == logging.WARNING, limit)

    def log(level: int, text: str) -> None:
        record = logging.LogRecord("x", level, "x", 1, "%s", (text,), None)
        if lines.filter(record):
            shown.append(record.getMessage())

    for number in range(5):
        log(logging.WARNING, f"refused {number}")
        log(logging.ERROR, f"failed {number}")
    assert shown == ["refused 0", "failed 0", "refused 1", "failed 1", "failed 2", "failed 3", "failed 4"]
    now_s = 1.0
    log(logging.WARNING, "refused 5")
    now_s = 2.0
    log(logging.WARNING, "refused 6")
    assert shown[-2:] == ["refused 5 (3 lines before it left out)", "refused 6"]
