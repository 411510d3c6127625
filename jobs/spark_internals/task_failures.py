"""Spark's description of a failed task, without Java's stack traces.

It relies on the wording of Spark's exceptions (since Spark 1.0): "Task 3 in stage 7.0 failed 4 times, ... (... executor
2): <exception>: <message>", followed by lines that begin with a tab and "at"; and that the exception of a Python task's
failure holds the traceback of the worker. If the wording changes, errors quote more of Spark's text.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

_ABORTED = re.compile(
    r"(Task \d+ in stage [\d.]+ failed \d+ times).*?\([^()]*executor[^()]*\): ((?:\w+\.)+[\w$]+)(?:: )?(.*)", re.DOTALL
)
_STACK = re.compile(r"\n\s+at |\n=== Streaming Query ===")
_BY_WORKER = "from the Python worker"
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ ].*\n)+", re.MULTILINE)


def failure_text(failure: BaseException) -> str:
    """Returns the type and message of Spark's exception.

    For a failed task, returns the number of tries and why the last try failed.
    """
    text = _STACK.split(str(failure), maxsplit=1)[0].strip()
    if isinstance(failure, PySparkException) and failure.getCondition():
        condition = str(failure.getCondition())
        return text if condition in text else f"{condition}: {text}"
    found = _ABORTED.search(text)
    if found is None:
        return f"{type(failure).__name__}: {text}" if text else type(failure).__name__
    task, kind, message = (part.strip() for part in found.groups())
    return f"{task} by {kind}{': ' + message if message else ''}"


def worker_traceback(failure: BaseException) -> str | None:
    """Returns the traceback that a Python worker has reported, if any."""
    text = _STACK.split(str(failure), maxsplit=1)[0]
    _, by_worker, rest = text.partition(_BY_WORKER)
    start = _TRACEBACK.search(rest) if by_worker else None
    return None if start is None else re.sub(r"\s+SQLSTATE: \w+\s*$", "", rest[start.start() :]).strip()


def raised_line(traceback: str) -> str:
    """Returns the type and message of a traceback's last exception.

    The message may have several lines.
    """
    *_, last = _TRACEBACK.finditer(traceback)
    return traceback[last.end() :].strip()
