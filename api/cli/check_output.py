"""The answer to a check of a program as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.units import duration_text

from .output import describe_failure, make_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

COLUMNS = (
    ("OPERATOR", "operator"),
    ("KIND", "kind"),
    ("KEY", "key"),
    ("STATE", "state"),
    ("DECLARED", "declared"),
)


def show_check(console: Console, answer: dict[str, Any]) -> None:
    """Prints the answer to a check for people."""
    if rows := list(operator_rows(answer)):
        console.print(make_table(rows, COLUMNS))
    for line in summary_lines(answer):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def operator_rows(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row for each state, and for each operator without states."""
    for operator in answer["operators"]:
        row = {
            "operator": operator["uid"],
            "kind": operator["kind"],
            "key": ", ".join(f"{column['name']} ({column['type']})" for column in operator["key"]),
        }
        for state in operator["states"]:
            ttl = "" if state["ttl_ms"] is None else f"; TTL: {duration_text(state['ttl_ms'])}"
            yield {**row, "state": state["name"], "declared": f"{state['declared'] or state['kind']}{ttl}"}
        if not operator["states"]:
            yield {**row, "state": "", "declared": ""}


def summary_lines(answer: dict[str, Any]) -> Iterator[str]:
    """Yields the sources and sinks of a program, and the verdict."""
    for noun in ("source", "sink"):
        for each in answer[f"{noun}s"]:
            yield f"{noun} {each['uid']}: {each['kind']}"
    if (failure := answer["failure"]) is None:
        yield "the program can be started"
    else:
        needs_job = "./keyscale jobs" in (failure["advice"] or "")
        yield describe_failure({**failure, "advice": None} if needs_job else failure)
