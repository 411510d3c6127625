"""Log lines of the control plane, drivers and workers: text or JSON."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT_VARIABLE = "KEYSCALE_LOG_FORMAT"
"""The environment variable with the format: `text` or `json`."""
FIELDS_VARIABLE = "KEYSCALE_LOG_FIELDS"
"""The environment variable with the fields of all lines of a process, as a JSON object."""
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
_FIELDS: ContextVar[Mapping[str, object]] = ContextVar("keyscale_log_fields")


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Adds fields to the lines that are logged in the block.

    None leaves a field out.
    """
    known = {name: value for name, value in fields.items() if value is not None}
    token = _FIELDS.set({**_FIELDS.get({}), **known})
    try:
        yield
    finally:
        _FIELDS.reset(token)


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON.

    Attributes of the record with the names in `ATTRIBUTES`, which `extra` sets, become fields, too.
    """

    ATTRIBUTES = ("job", "attempt", "operation", "request_id", "status")

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **_FIELDS.get({}),
        }
        given = {name: getattr(record, name, None) for name in self.ATTRIBUTES}
        line |= {name: value for name, value in given.items() if value is not None and value != "-"}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(variables: Mapping[str, str], text: str, *filters: logging.Filter) -> None:
    """Makes the process log to its standard error.

    Args:
        variables: The environment.
        text: The format of lines of text.
        filters: Filters of all lines.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_of(variables, text))
    for each in filters:
        handler.addFilter(each)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def configure_worker_logging(variables: Mapping[str, str]) -> None:
    """Makes a Python worker of Spark log its warnings as JSON.

    Without the setting, Python writes a worker's warnings as text by itself.
    """
    if variables.get(FORMAT_VARIABLE) == JSON:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter_of(variables, ""))
        logging.basicConfig(level=logging.WARNING, handlers=[handler])


def formatter_of(variables: Mapping[str, str], text: str) -> logging.Formatter:
    """Returns the formatter that an environment chooses.

    `text` is the format of lines of text.
    """
    if variables.get(FORMAT_VARIABLE) != JSON:
        return logging.Formatter(text)
    return JsonLines(json.loads(variables.get(FIELDS_VARIABLE) or "{}"))


def worker_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables by which workers log as their driver.

    Lines of text have no fields, and workers with the same variables serve any job.
    """
    if variables.get(FORMAT_VARIABLE) != JSON:
        return {}
    return {name: variables[name] for name in (FORMAT_VARIABLE, FIELDS_VARIABLE) if name in variables}
