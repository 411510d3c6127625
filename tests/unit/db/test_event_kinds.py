"""Every event has a kind of the list, and a kind that no event has is refused."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from pydantic import TypeAdapter, ValidationError

from keyscale.api.events.routes import Kinds
from keyscale.db.event_kinds import EVENT_KINDS, command_event, notification_of
from keyscale.vocabulary import CommandKind, JobStatus, NotificationKind
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = re.compile(r"f?'([A-Z_]+|\{[a-z_.()]+\})(_[A-Z_]+|_\{[a-z]+\})*'")


def written(source: str) -> Iterator[str]:
    """Yields the kinds of events that a module records, with parts that are computed as `{}`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"record", "_record"}:
            for given in [each.value for each in node.keywords if each.arg == "kind"] or node.args[:2]:
                if KIND.fullmatch(text := ast.unparse(given)):
                    yield re.sub(r"\{[^}]*\}", "{}", text.removeprefix("f").strip("'"))


def is_listed(kind: str) -> bool:
    pattern = re.escape(kind).replace(r"\{\}", "[A-Z_]+")
    return any(re.fullmatch(pattern, each) for each in EVENT_KINDS)


def test_every_event_has_a_kind_of_the_list() -> None:
    modules = [*(ROOT / "api").rglob("*.py"), *(ROOT / "db").rglob("*.py")]
    kinds = {kind for module in modules for kind in written(module.read_text(encoding="utf-8"))}
    assert {"JOB_CREATED", "START_WAITS", "JOB_TAKEN_UP", "{}_{}", "JOB_{}", "{}_PHASE"} <= kinds
    assert {kind for kind in kinds if not is_listed(kind)} == set()
    assert not is_listed("JOB_EATEN")


def test_a_job_ends_with_a_kind_of_the_list() -> None:
    assert {f"JOB_{status}" for status in (JobStatus.STOPPED, JobStatus.FAILED, JobStatus.FINISHED)} <= EVENT_KINDS


def test_a_kind_that_no_event_has_is_refused_with_the_list_of_kinds() -> None:
    kinds = TypeAdapter(Kinds)
    assert kinds.validate_python(["JOB_FAILED"]) == ["JOB_FAILED"]
    with pytest.raises(ValidationError, match="no event has this kind; the kinds are ACCESS_DENIED, APPR"):
        kinds.validate_python(["JOB_FAILED", "NOSUCH"])


@pytest.mark.parametrize(
    ("kind", "notification"),
    [
        ("JOB_FAILED", NotificationKind.JOB_FAILED),
        ("STORE_AWAY", NotificationKind.STORE_AWAY),
        ("STORE_AWAY_ENDED", NotificationKind.STORE_AWAY),
        ("CHECKPOINTS_LATE_ENDED", NotificationKind.CHECKPOINTS_LATE),
        ("RESCALE_COMPLETED", NotificationKind.OPERATION_COMPLETED),
        ("UPGRADE_ROLLED_BACK", NotificationKind.OPERATION_ROLLED_BACK),
        ("STOP_FAILED", NotificationKind.OPERATION_FAILED),
        ("RESCALE_CANCELLED", None),
        ("JOB_FAILED_ENDED", None),
        ("OPERATION_FAILED", None),
        ("LIVE_RESCALE_FAILED", None),
        ("RESCALE_PHASE", None),
    ],
)
def test_a_notification_is_about_the_ends_of_operations_and_both_ends_of_alarms(
    kind: str, notification: NotificationKind | None
) -> None:
    assert notification_of(kind) is notification


def test_the_end_of_a_live_rescales_command_is_not_the_end_of_the_rescale() -> None:
    told = [command_event(kind, "FAILED") for kind in (CommandKind.RESCALE, CommandKind.SAVEPOINT)]
    assert told == ["LIVE_RESCALE_FAILED", "SAVEPOINT_FAILED"]
    assert command_event(CommandKind.STOP_WITH_SAVEPOINT, "COMPLETED") == "STOP_WITH_SAVEPOINT_COMPLETED"
