"""Each value of a row is shown under its own name: rows of distinct values find a field with another's value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.access_tokens import tokens
from keyscale.api.launching.launcher import Seen
from keyscale.api.launching.processes import ProcessState
from keyscale.api.lifecycle.fact_reader import FactReader
from keyscale.api.lifecycle.facts import Timeouts
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.api.metrics import days
from keyscale.api.notifications import subscriptions
from keyscale.api.operations.operations import operation_answer
from keyscale.api.snapshots import checkpoints
from keyscale.db.models import (
    Attempt,
    Checkpoint,
    CheckpointSubtask,
    Delivery,
    Operation,
    SeriesPoint,
    Subscription,
    Token,
)
from keyscale.vocabulary import CommandStatus, DriverState, OperationKind
from tests.support.distinct_values import distinct_row, fields_of, uncarried

if TYPE_CHECKING:
    from collections.abc import Callable

Shown = tuple[Any, Any, dict[str, str], set[str]]
FAILURE = {"code": "X", "message": "it broke"}


class Launcher:
    """In place of the launcher: every process has died with exit code 3."""

    def inspect(self, _: Attempt) -> Seen:
        return Seen(ProcessState.DEAD, 3, (5,))


READER = FactReader(cast("Any", Launcher()), Stopwatch(lambda: 0.0), Timeouts())


def a_checkpoint() -> Shown:
    row = distinct_row(Checkpoint)
    names = {"id": "checkpoint_id", "processed_data": "processed_records"}
    return row, checkpoints.answer_of(row), names, {"checkpoint_type", "discarded", "persisted_data"}


def a_part_of_a_checkpoint() -> Shown:
    lists: dict[str, Any] = {"key_group_entries": [7], "key_group_bytes": [8], "largest_key_groups": []}
    row = distinct_row(CheckpointSubtask, **lists)
    shown = checkpoints._subtask(row)
    durations = {"sync": shown.checkpoint.sync, "async_": shown.checkpoint.async_}
    names = {"index": "subtask", "sync": "sync_duration", "async_": "async_duration"}
    return row, {**fields_of(shown), **durations}, names, {"checkpoint"}


def an_operation() -> Shown:
    given: dict[str, Any] = {"phases": [], "failure": None, "not_live": None, "kind": OperationKind.UPGRADE}
    row = distinct_row(Operation, **given, live={"held_ms": 9}, times=None, metrics_before=None, metrics_after=None)
    derived = {"duration_ms", "downtime_ms", "steps", "prepared_ms", "held_ms", "plan", "result", "can_cancel"}
    return row, operation_answer(row), {}, derived


def a_command() -> Shown:
    row = distinct_row(Operation, kind=OperationKind.STOP, command_status=CommandStatus.FAILED)
    names = {"operation_id": "id", "status": "command_status", "attempt": "old_attempt"}
    return row, READER._command(row), names, {"drain", "status_age_ms", "tries"}


def an_attempt() -> Shown:
    row = distinct_row(Attempt, driver_state="RUNNING", failure=FAILURE, metrics={"last_failure": {"code": "Y"}})
    names = {"pids": "pids"}
    derived = {"process", "exit_code", "pids", "turn", "is_attached", "has_run_input", "waits_for_input"}
    ages = {
        "silent_ms",
        "state_age_ms",
        "starting_ms",
        "attached_age_ms",
        "has_progressed",
        "run_failure",
        "driver_state",
    }
    facts = READER.of_attempt(row)
    assert (facts.driver_state, facts.run_failure) == (DriverState.RUNNING, {"code": "Y"})
    assert (facts.process, facts.exit_code, facts.pids) == (ProcessState.DEAD, 3, (5,))
    return row, facts, names, derived | ages


def a_subscription() -> Shown:
    row = distinct_row(Subscription, kinds=["JOB_FAILED"], job_names=["a"], job_labels={"b": "c"})
    shown = subscriptions._fields(row, {row.id: (3, 4), "another": (5, 6)})
    assert (shown["pending_count"], shown["failed_count"]) == (3, 4)
    assert (shown["selector"].jobs, shown["selector"].labels) == (["a"], {"b": "c"})
    return row, shown, {}, {"target", "selector", "pending_count", "failed_count"}


def a_delivery() -> Shown:
    row = distinct_row(Delivery)
    return row, subscriptions._shown(row, "A_KIND"), {}, {"kind"}


def a_token() -> Shown:
    row = distinct_row(Token, job_names=["a"], job_labels={"b": "c"})
    shown = tokens._fields(row)
    assert (shown["scope"].jobs, shown["scope"].labels) == (["a"], {"b": "c"})
    return row, shown, {}, {"scope"}


def a_day() -> Shown:
    row = distinct_row(SeriesPoint)
    grown = {"input_records": 1, "output_records": 2}
    names = {"checkpoint_duration_max_ms": "checkpoint_duration_ms", "lag_ms_max": "lag_ms"}
    return row, days._day(row, cast("Any", grown)), names, {"day", "checkpoint_duration_avg_ms", *grown}


@pytest.mark.parametrize(
    "shown",
    [
        a_checkpoint,
        a_part_of_a_checkpoint,
        an_operation,
        a_command,
        an_attempt,
        a_subscription,
        a_delivery,
        a_token,
        a_day,
    ],
)
def test_every_value_is_carried_under_its_name(shown: Callable[[], Shown]) -> None:
    row, target, renamed, derived = shown()
    assert uncarried(row, target, renamed=renamed, derived=derived) == {}


def test_a_value_of_another_field_is_found() -> None:
    row = distinct_row(Checkpoint)
    shown = {"state_size": row.checkpointed_size, "batch_id": row.batch_id}
    assert uncarried(row, shown, renamed={}, derived=set()) == {"state_size": (row.checkpointed_size, row.state_size)}
