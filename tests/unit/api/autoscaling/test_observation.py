"""Reports, series and settings become the facts of a decision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.autoscaling.facts import BatchFacts, DivisionFacts, Limits, MoveFacts, ScalingFacts, SleepFacts
from keyscale.api.autoscaling.observation import (
    batches_of,
    division_of,
    facts_of,
    moves_of,
    operators_of,
    rates_of,
    shown,
    sleep_of,
)
from keyscale.db.repositories.scaling import Load, PastDecision, ScaledJob
from keyscale.state.doors.values import KeyGroupRanges
from keyscale.vocabulary import (
    AttemptStage,
    DriverState,
    JobStatus,
    OperationStatus,
    ScalingOutcome,
    ScalingVerdict,
)

if TYPE_CHECKING:
    from keyscale.db.models import CheckpointSubtask

NOON_MS = 20_000 * 86_400_000 + 43_200_000
PARTS = ("wait", "plan", "spark", "function", "state", "store", "sink", "append", "publish")


def batch(records: int = 100) -> dict[str, Any]:
    """A batch with a different time of each part: wait 1 ms, plan 2 ms, and so on."""
    parts = {f"{part}_ms": 2**at for at, part in enumerate(PARTS)}
    return {"at_ms": NOON_MS, "input_records": records, **parts}


def job(**changed: Any) -> ScaledJob:
    settings, spec = changed.pop("settings", {}), changed.pop("spec", {})
    known: dict[str, Any] = {
        "id": "j",
        "name": "flights",
        "status": JobStatus.RUNNING,
        "revision": 1,
        "max_parallelism": 128,
        "spec": {"parallelism": 2, **spec, "autoscaler": {"mode": "ACTIVE", **settings}},
        "failure": None,
        "stage": AttemptStage.ACTIVE,
        "parallelism": 2,
        "slots": 8,
        "driver_state": DriverState.RUNNING,
        "heartbeat_at_ms": NOON_MS,
        "last_commit_at_ms": NOON_MS,
        "metrics": {"recent_batches": [batch()] * 5, "pending_records": 3},
    }
    return ScaledJob(**{**known, **changed})


def facts(of: ScaledJob, past: tuple[PastDecision, ...] = (), core_ms: int = 0) -> Any:
    return facts_of(of, [], past, core_ms=core_ms, parallelism_max=1024, at_ms=NOON_MS)


def decided(verdict: ScalingVerdict, confirmed_at_ms: int, batch_limit: int | None = None) -> PastDecision:
    return PastDecision(1, verdict, 2, 2, confirmed_at_ms, batch_limit, None, None, None, None, None, None)


def test_the_parts_of_a_batch_have_the_roles_that_more_subtasks_give_them() -> None:
    assert batches_of({"batches": 50, "recent_batches": [batch(), batch(0), batch(-100)]}) == (
        BatchFacts(100, spark_ms=4, log_ms=2 + 128, work_ms=8 + 16, store_ms=32, sink_ms=64 + 256),
    )


def test_the_first_batch_of_an_attempt_is_left_out() -> None:
    assert len(batches_of({"batches": 3, "recent_batches": [batch()] * 3})) == 2
    assert len(batches_of({"batches": 4, "recent_batches": [batch()] * 3})) == 3


def test_the_spread_of_an_operator_is_of_its_last_batch() -> None:
    subtasks = [{"read_records": 7, "open_ms": 1, "process_ms": 2, "finish_ms": 4, "input_ms": 99}, {"read_records": 3}]
    groups = [{"key_group": 5, "records": 4}]
    [found] = operators_of({"operators": [{"uid": "a", "subtasks": subtasks, "key_groups": groups}, {"uid": "old"}]})
    assert (found.uid, found.work_ms, found.subtask_records, found.key_groups) == ("a", 7, (7, 3), {5: 4})


def test_what_arrives_is_read_or_waits() -> None:
    loads = [Load(10_000 * at, 1000 * at, 500 * at) for at in range(8)]
    assert rates_of(loads)[-1] == pytest.approx(150)
    assert rates_of([load._replace(lag_records=None) for load in loads])[-1] == pytest.approx(100)
    away = [load._replace(lag_records=None) if at < 4 else load for at, load in enumerate(loads)]
    assert {round(each) for each in rates_of(away)} == {150}, "a backlog that was not counted is not taken for input"
    assert rates_of([load._replace(lag_records=20_000 - 2000 * at) for at, load in enumerate(loads)])[-1] == 0
    assert rates_of(loads[:3]) == [], "half a minute is too short"
    assert rates_of(loads[:5])[-1] == pytest.approx(150), "a time of less than a minute counts as it is"
    jumps = [Load(10_000 * at, at // 9 * 63_000, None) for at in range(30)]  # batches of 90 s, 700 records per second
    assert max(rates_of(jumps)) > 1000
    assert rates_of(jumps, 270_000)[-1] == pytest.approx(700)


def test_each_fact_of_a_decision_has_its_own_source() -> None:
    subtask = {"read_records": 7, "process_ms": 20_000, "processor_wait_ms": 5000}
    report = {
        "batches": 9,
        "recent_batches": [batch(), batch(30)],
        "operators": [{"uid": "count", "subtasks": [subtask], "key_groups": [{"key_group": 5, "records": 4}]}],
        "pending_records": 3,
        "waits_for_input": True,
        "can_sleep": True,
        "unwatched": ["file"],
        "timers_due_at_ms": NOON_MS + 70,
        "source_lags": [{"uid": "a", "splits": {"0": 1}}, {"uid": "b", "splits": {"0": 1, "1": 2}}, {"uid": "c"}],
    }
    settings = {"catch_up_ms": 5000, "parallelism_max": 6, "core_hours_per_day": 60.0, "sleep_after_ms": 60_000}
    known = job(
        settings=settings,
        spec={"batch_interval_ms": 250},
        parallelism=3,
        metrics=report,
        restored_at_ms=NOON_MS - 900,
        last_commit_at_ms=NOON_MS - 1,
    )
    loads = [Load(NOON_MS - 60_000, 0, 0), Load(NOON_MS - 30_000, 6000, 0), Load(NOON_MS, 9000, 0)]
    division = DivisionFacts(KeyGroupRanges(128, (0, 64)), [1] * 128)
    past = (decided(ScalingVerdict.STEADY, NOON_MS, 500),)
    found = facts_of(
        known, loads, past, core_ms=24 * 3_600_000, parallelism_max=5, at_ms=NOON_MS, division=division
    )  # fmt: skip
    expected = ScalingFacts(
        at_ms=NOON_MS,
        parallelism=3,
        key_groups=128,
        limits=Limits(1, 5, affordable=3),
        batches=batches_of(report),
        operators=operators_of(report),
        rate=150.0,
        rate_peak=200.0,
        observed_ms=60_000,
        backlog=3,
        catch_up_ms=5000,
        splits=2,
        processor_wait=0.25,
        batch_interval_ms=250,
        division=division,
        batch_limit=500,
        disturbance=None,
        sleep=SleepFacts(60_000, 0, ["file"], 70),
        moves=(),
    )
    assert found == expected
    assert shown(found) == {
        "input_records_per_second": 150.0,
        "peak_records_per_second": 200.0,
        "lag_records": 3,
        "batch": {
            "records": 65.0, "spark_ms": 4.0, "log_ms": 130.0, "work_ms": 24.0, "store_ms": 32.0, "sink_ms": 320.0
        },
        "batch_limit": 500,
        "splits": 2,
        "processor_wait_ratio": 0.25,
        "parallelism_min": 1,
        "parallelism_max": 5,
        "affordable_parallelism": 3,
    }  # fmt: skip
    never = facts_of(job(parallelism=None, slots=None, metrics=None), [], (), core_ms=0, parallelism_max=9, at_ms=1)
    assert (never.parallelism, never.limits, never.rate, never.rate_peak, never.backlog) == (
        2,
        Limits(1, 2),
        None,
        0,
        None,
    )
    assert (never.batches, never.splits, never.batch_limit, never.sleep) == ((), None, None, None)


@pytest.mark.parametrize(
    ("settings", "spec", "slots", "limits"),
    [
        ({}, {}, 8, Limits(1, 8)),
        ({}, {"parallelism_limit": 6}, None, Limits(1, 6)),
        ({}, {}, None, Limits(1, 2)),
        ({}, {}, 1, Limits(1, 2)),
        ({"parallelism_min": 3, "parallelism_max": 20}, {}, 8, Limits(3, 20)),
        ({"parallelism_max": 4000}, {}, 8, Limits(1, 128)),
        ({"parallelism_min": 9}, {}, 8, Limits(8, 8)),
        ({"excluded_hours": ["11:00-12:01"]}, {}, 8, Limits(1, 8, is_excluded=True)),
        ({"excluded_hours": ["11:00-12:00", "12:01-11:00"]}, {}, 8, Limits(1, 8)),
        ({"excluded_hours": ["23:00-22:00"]}, {}, 8, Limits(1, 8, is_excluded=True)),
    ],
)
def test_limits_come_from_settings_and_slots(
    settings: dict[str, Any], spec: dict[str, Any], slots: int | None, limits: Limits
) -> None:
    assert facts(job(settings=settings, spec=spec, slots=slots)).limits == limits


@pytest.mark.parametrize(
    ("input_ago_ms", "restored_ago_ms", "idle_ms"),
    [((700, 500), 900, 500), ((700, 500), 300, 300), ((), 300, 300)],
    ids=["input since the restore", "restored since the input", "no input yet"],
)
def test_a_job_is_idle_since_its_last_input_and_its_restore(
    input_ago_ms: tuple[int, ...], restored_ago_ms: int, idle_ms: int
) -> None:
    batches = [{"at_ms": NOON_MS - ago, "input_records": 1} for ago in input_ago_ms]
    empty = {"at_ms": NOON_MS - 1, "input_records": 0}
    report = {"waits_for_input": True, "can_sleep": True, "recent_batches": [*batches, empty]}
    asleep = sleep_of(60_000, job(metrics=report, restored_at_ms=NOON_MS - restored_ago_ms), NOON_MS)
    assert asleep is not None
    assert (asleep.after_ms, asleep.idle_ms, asleep.unwatched) == (60_000, idle_ms, ())


def test_the_last_move_and_the_moves_of_an_hour_count_from_the_end_of_their_rescales() -> None:
    def moved(operation: str | None, confirmed_at_ms: int, ended_at_ms: int | None, status: str | None) -> PastDecision:
        outcome = None if operation is None else ScalingOutcome.PENDING
        ended = (None if status is None else OperationStatus(status), ended_at_ms)
        return PastDecision(
            1, ScalingVerdict.SCALE_UP, 2, 4, confirmed_at_ms, None, 9.0, 5.0, outcome, operation, *ended
        )

    hour_ms = 3_600_000
    past = [
        moved(None, NOON_MS, None, None),
        moved("last", NOON_MS - 2 * hour_ms, NOON_MS - hour_ms, "COMPLETED"),
        moved("slow", NOON_MS - 2 * hour_ms, NOON_MS - hour_ms + 1, "ROLLED_BACK"),
        moved("removed", NOON_MS - hour_ms + 2, None, None),
        moved("old", NOON_MS - 2 * hour_ms, NOON_MS - hour_ms, "COMPLETED"),
    ]
    assert [(move.ended_at_ms - NOON_MS + hour_ms, move.outcome) for move in moves_of(past, NOON_MS)] == [
        (0, ScalingOutcome.PENDING),
        (1, ScalingOutcome.FAILED),
        (2, ScalingOutcome.PENDING),
    ]


@pytest.mark.parametrize("status", [None, *OperationStatus])
def test_a_move_whose_operation_has_not_changed_the_parallelism_has_failed(status: OperationStatus | None) -> None:
    operation = ("rescale", status, None)
    move = PastDecision(1, ScalingVerdict.SCALE_UP, 2, 4, NOON_MS, None, 9.0, 5.0, ScalingOutcome.DELIVERED, *operation)
    unchanged = {OperationStatus.FAILED, OperationStatus.ROLLED_BACK, OperationStatus.CANCELLED}
    expected = ScalingOutcome.FAILED if status in unchanged else ScalingOutcome.DELIVERED
    assert moves_of([move], NOON_MS) == (MoveFacts(NOON_MS, 2, 4, expected, 9.0, 5.0),)


def test_the_rest_of_a_budget_lasts_until_midnight() -> None:
    def affordable(core_hours: float, used_hours: float) -> Any:
        given = job(settings={"core_hours_per_day": core_hours})
        return facts(given, core_ms=int(used_hours * 3_600_000)).limits.affordable

    assert [affordable(60, used) for used in (0, 24, 36.1, 70)] == [5, 3, 1, 0]


FAILED = {"failures": {"count": 1, "times_ms": [NOON_MS - 599_999]}, "last_failure": {"code": "USER_CODE_FAILED"}}


@pytest.mark.parametrize(
    ("verdict", "changed"),
    [
        (ScalingVerdict.NOT_RUNNING, {"status": JobStatus.RESTARTING}),
        (ScalingVerdict.NOT_RUNNING, {"driver_state": DriverState.RESTORING}),
        (ScalingVerdict.NOT_RUNNING, {"heartbeat_at_ms": NOON_MS - 15_000}),
        (ScalingVerdict.NOT_RUNNING, {"heartbeat_at_ms": None, "metrics": None, "parallelism": None}),
        (ScalingVerdict.SLEEP, {"driver_state": DriverState.SLEEPING}),
        (ScalingVerdict.NOT_RUNNING, {"driver_state": DriverState.SLEEPING, "heartbeat_at_ms": NOON_MS - 15_000}),
        (ScalingVerdict.FAILING, {"failure": {"code": "X", "message": "m"}}),
        (ScalingVerdict.FAILING, {"metrics": FAILED}),
        (ScalingVerdict.OUTAGE, {"metrics": {"store_away_since_ms": 1}}),
        (ScalingVerdict.OUTAGE, {"metrics": {"sink_outage": {"uid": "table", "since_ms": 1, "reason": "r"}}}),
        (ScalingVerdict.GARBAGE_COLLECTION, {"metrics": {"garbage_collection_ratio": 0.2}}),
    ],
)
def test_a_disturbance_hides_how_fast_a_job_is(verdict: ScalingVerdict, changed: dict[str, Any]) -> None:
    disturbance = facts(job(**changed)).disturbance
    assert disturbance is not None
    assert disturbance.verdict is verdict


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"garbage_collection_ratio": 0.19},
        {"failures": {"count": 1, "times_ms": [NOON_MS - 600_000]}, "last_failure": {"code": "USER_CODE_FAILED"}},
    ],
)
def test_a_job_without_a_recent_trouble_shows_how_fast_it_is(metrics: dict[str, Any]) -> None:
    assert facts(job(metrics=metrics)).disturbance is None


def test_a_batch_that_began_in_a_disturbance_does_not_show_how_fast_the_job_is() -> None:
    waited = batch(10) | {"at_ms": NOON_MS - 1000, "store_ms": 30_000}
    after = batch(20) | {"wait_ms": 60_000}
    report = {"batches": 9, "recent_batches": [waited, after]}

    def seen(verdict: ScalingVerdict) -> list[int]:
        past = (decided(ScalingVerdict.STEADY, NOON_MS), decided(verdict, NOON_MS - 20_000))
        return [each.records for each in facts(job(metrics=report), past).batches]

    assert seen(ScalingVerdict.OUTAGE) == [20], "the wait for input in the disturbance is no part of the batch"
    assert seen(ScalingVerdict.STEADY) == [10, 20]


def test_the_limit_of_a_batch_is_remembered_by_the_latest_decision() -> None:
    past = (decided(ScalingVerdict.STEADY, NOON_MS, 500), decided(ScalingVerdict.STEADY, NOON_MS, 900))
    assert facts(job(), past).batch_limit == 500


def part(start: int, end: int, entries: list[int], **changed: Any) -> CheckpointSubtask:
    known = {"key_group_start": start, "key_group_end": end, "key_group_entries": entries, "key_group_bytes": entries}
    return cast("CheckpointSubtask", SimpleNamespace(**known | changed))


def test_the_division_by_size_is_of_all_operators_at_the_newest_checkpoint() -> None:
    parts = [part(0, 0, [5]), part(0, 0, [1]), part(1, 3, [1, 0, 2]), part(1, 3, [0, 0, 1])]
    known = division_of(parts, 4)
    assert known is not None
    assert (known.ranges.starts, [weight / known.weights[1] for weight in known.weights]) == ((0, 1), [6, 1, 0, 3])
    assert division_of([], 4) is None
    assert division_of([*parts[:3], part(1, 3, [0, 0, 1], key_group_bytes=[])], 4) is None, "of an earlier version"
