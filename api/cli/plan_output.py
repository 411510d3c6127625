"""A plan as people read it.

It shows the fate of each state, the movement of files, and the expected downtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.units import bytes_text, duration_text

from .output import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

STATE_COLUMNS = (
    ("OPERATOR", "operator"),
    ("STATE", "name"),
    ("KIND", "kind"),
    ("FATE", "fate"),
    ("DETAILS", "details"),
)


def show_plan(console: Console, answer: dict[str, Any]) -> None:
    """Prints a plan for people."""
    if rows := list(state_rows(answer)):
        console.print(make_table(rows, STATE_COLUMNS))
    for line in summary_lines(answer):
        console.print(line, markup=False, soft_wrap=True)


def state_rows(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row per state, and per operator without takeover or states."""
    for operator in plan["operators"]:
        if operator["reason"] or not operator["states"]:
            details = operator["reason"] or ""
            yield {"operator": operator["uid"], "name": "", "kind": "", "fate": operator["fate"], "details": details}
        for state in operator["states"]:
            yield {**state, "operator": operator["uid"], "details": _details(state)}


def summary_lines(plan: dict[str, Any]) -> Iterator[str]:
    """Yields the lines below the table.

    They show settings, movement, downtime and required permissions.
    """
    for setting in plan["settings"]:
        yield f"setting {setting['name']}: {setting['before']} to {setting['after']}"
    for each in plan["sources"]:
        if each["fate"] != "KEPT":
            yield f"source {each['uid']}: {each['reason'] or each['fate']}"
    for each in plan["sinks"]:
        if each["fate"] == "DROPPED":  # a sink that keeps nothing in the log looks new in every plan
            yield f"sink {each['uid']}: dropped{'' if each['reason'] is None else '; ' + each['reason']}"
    moved = plan["movement"]
    yield f"state: {bytes_text(moved['state_bytes'])}, of which {bytes_text(moved['moved_bytes'])} move"
    if plan["rescale_mode"] is not None:
        yield f"carried out {way_of(plan)}"
    expected = plan["downtime"]["expected_ms"]
    yield f"downtime: {plan['downtime']['reason'] if expected is None else 'about ' + duration_text(expected)}"
    if (failure := plan["failure"]) is not None:
        yield f"{failure['code']}: {failure['message']}"
        yield from filter(None, [failure.get("traceback"), failure.get("advice")])
    if plan["requires_allow_non_restored_state"]:
        yield "state or output would be lost: --allow-non-restored-state has to allow it"


def way_of(plan: dict[str, Any]) -> str:
    """Returns which driver would carry a rescale out."""
    not_live = plan["not_live"]
    return (
        "by the running driver, between two batches" if not_live is None else f"by a new driver: {not_live['message']}"
    )


def _details(state: dict[str, Any]) -> str:
    if state["reason"] is not None:
        return f"stored: {state['stored']}; declared: {state['declared']}"
    return "; ".join(state["rules"]) or state["declared"] or state["stored"] or ""
