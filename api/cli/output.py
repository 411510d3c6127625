"""Shows answers as tables for people, or as JSON for programs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyscale.printable import printable
from keyscale.units import bytes_text, duration_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# A pipe or a file has no width; values that are cut there could not be found with grep.
PIPE_WIDTH = 220


def console_for(stream: Any) -> Console:
    """Returns a console with the terminal's width, wide for pipes and files."""
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False)


class Output:
    """Shows the answer of a command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = console_for(sys.stdout)

    def show(self, answer: Any, render: Callable[[Console], None]) -> None:
        """Prints the API's answer unchanged with --json, else renders it with `render`."""
        if self.as_json:
            sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
        else:
            render(self.console)

    def say(self, text: str, answer: Any = None) -> None:
        """Prints a sentence, or with --json its answer."""
        self.show(answer, lambda console: console.print(text, markup=False))

    def table(self, answer: Any, rows: Iterable[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
        """Prints rows as a table.

        A column is a heading and the name of a field (see `cell` for its unit).
        """
        self.show(answer, lambda console: console.print(make_table(rows, columns)))

    def fields(self, answer: dict[str, Any]) -> None:
        """Prints the fields of an answer, one per line.

        Nested values are indented JSON.
        """
        self.show(answer, lambda console: _print_fields(console, answer))

    def view(self, answer: Any, fields: dict[str, Any]) -> None:
        """Prints some fields of an answer, or with --json the answer."""
        self.show(answer, lambda console: _print_fields(console, fields))


def _print_fields(console: Console, answer: dict[str, Any]) -> None:
    failure = answer.get("failure")
    if not isinstance(failure, dict):
        console.print(make_fields(answer))
        return
    # Shown once and readable: the attempt's failure is usually the same, and a traceback in JSON is one long line.
    attempt = answer.get("attempt")
    if isinstance(attempt, dict) and attempt.get("failure") == failure:
        answer = {**answer, "attempt": {**attempt, "failure": "as above"}}
    console.print(describe_failure(failure), markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(make_fields({field: value for field, value in answer.items() if field != "failure"}))


def describe_failure(failure: Mapping[str, Any]) -> str:
    """Describes a failure in lines.

    The lines have the failed part, its place, the user's traceback and the advice.
    """
    names = {"operator_uid": "operator", "subtask": "subtask"}
    where = ", ".join(f"{name} {failure[field]}" for field, name in names.items() if failure.get(field) is not None)
    lines = [f"{failure['code']}: {failure['message']}{f' ({where})' if where else ''}"]
    lines += [text.rstrip() for text in (failure.get("traceback"), failure.get("advice")) if text]
    return printable("\n".join(lines))


def make_fields(answer: dict[str, Any]) -> Table:
    """Returns a table of names and values."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for field, value in answer.items():
        nested = isinstance(value, (dict, list)) and bool(value)
        table.add_row(
            field, json.dumps(_with_units(field, value), indent=2, ensure_ascii=False) if nested else cell(field, value)
        )
    return table


def _with_units(field: str, value: Any) -> Any:
    """Returns a nested value with its sizes, durations and times in words."""
    if isinstance(value, dict):
        return {name: _with_units(name, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_units(field, each) for each in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return cell(field, value) if is_number and form_of(field) is not None else value


def make_table(rows: Iterable[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> Table:
    """Returns a table of rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, _ in columns:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell(field, row.get(field))) for _, field in columns])  # text may have brackets
    return table


def cell(field: str, value: Any) -> str:
    """Formats a value by its field's unit.

    Sizes are in bytes, durations and times in milliseconds.
    """
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return printable(str(value))
    form = form_of(field)
    return f"{value:,}" if form is None else form(value)


def form_of(field: str) -> Callable[[float], str] | None:
    """Returns the form of numbers of a field; None without a unit."""
    return next((form for endings, form in UNITS if field.endswith(endings)), None)


def format_time_ms(moment: float) -> str:
    """Formats milliseconds since the epoch as a time of day, UTC.

    The text has the date if it is not today. Beyond the year 9999 it is the number, as of a topic that keeps records
    for ever.
    """
    try:
        when = datetime.fromtimestamp(moment / 1000, tz=UTC)
    except (OSError, OverflowError, ValueError):
        return f"{moment:.0f} ms"
    text = when.strftime("%H:%M:%S.%f")[:-3]
    return text if when.date() == datetime.now(tz=UTC).date() else f"{when:%Y-%m-%d} {text}"


_MOMENTS = ("_timestamp", "at_ms", "_since_ms", "times_ms", "watermark_ms", "processing_time_ms")
UNITS = (
    (("_size", "_bytes"), bytes_text),
    (_MOMENTS, format_time_ms),  # before durations: both end in _ms
    (("_duration", "_ms"), duration_text),
)
