"""A job that does not keep up has the reason named; a job that keeps up has none."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.health.facts import HealthFacts
from keyscale.api.health.health import health_of
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.vocabulary import HealthLevel

PARTS = ("wait", "plan", "spark", "function", "state", "store", "sink", "append", "publish")


def subtask(index: int, process_ms: float, **metrics: Any) -> dict[str, Any]:
    return {"index": index, "process_ms": process_ms, **metrics}


def operator(*subtasks: dict[str, Any], hot: int = 0) -> dict[str, Any]:
    groups = [{"key_group": 7, "records": hot}, {"key_group": 9, "records": 5}]
    return {"uid": "counts", "batch_records": 1000, "key_groups": groups, "subtasks": list(subtasks)}


def batches(*records: int, **parts_ms: int) -> list[dict[str, Any]]:
    """The batches of a driver: the first one, which starts Spark, and later ones with the same parts."""
    later = {f"{part}_ms": parts_ms.get(part, 10) for part in PARTS}
    return [
        {"batch_id": 0, "at_ms": 1, "input_records": 5, "spark_ms": 60_000},
        *({"batch_id": 1 + at, "at_ms": 1, "input_records": count, **later} for at, count in enumerate(records)),
    ]


def report(operators: list[dict[str, Any]] | None = None, **changed: Any) -> dict[str, Any]:
    """A report of a driver that falls behind, for no reason that is known; parts of a batch by their names."""
    parts = {part: changed.pop(part) for part in PARTS if part in changed}
    known = {
        "batches": 20,
        "pending_records": 50_000,
        "lag_growth": 200.0,
        "input_records_per_second": 800.0,
        "operators": operators or [operator(subtask(0, 20), subtask(1, 20))],
        "recent_batches": batches(*changed.pop("records", (4000, 4000)), **parts),
        "sinks": [{"uid": "files", "write_ms": 5}, {"uid": "table", "write_ms": 4000}],
    }
    return DriverMetrics.model_validate({**known, **changed}).model_dump(mode="json")


def codes(told: dict[str, Any]) -> list[str]:
    reasons = health_of(HealthFacts(report=told, is_current=True)).reasons
    assert all(reason.advice for reason in reasons)
    return [reason.code for reason in reasons]


CAUSES = {
    "HOT_KEY_GROUP": report([operator(subtask(0, 4000), subtask(1, 1000), hot=800)], function=4000),
    "SUBTASK_SKEW": report([operator(subtask(0, 4000), subtask(1, 1000), hot=200)], function=4000),
    "FUNCTION_SLOW": report([operator(subtask(0, 4000), subtask(1, 3500), hot=200)], function=4000, spark=500),
    "SINK_SLOW": report(sink=3000, publish=1000, spark=1000),
    "STORE_SLOW": report(store=500, plan=1500, append=1500, spark=1000),
    "BATCHES_TOO_SMALL": report(spark=900, plan=30, records=(10, 0, 14)),
}


@pytest.mark.parametrize("code", CAUSES)
def test_the_cause_comes_first_and_is_the_only_cause(code: str) -> None:
    assert codes(CAUSES[code]) == [code, "FALLING_BEHIND"]


@pytest.mark.parametrize("code", CAUSES)
@pytest.mark.parametrize(
    "keeps_up",
    [
        {"recent_batches": batches(4000, 4000, wait=60_000)},
        {"pending_records": 900},
        {"lag_growth": -1000.0},
        {"lag_growth": None},
    ],
    ids=["waits for input", "little is left", "catches up", "has just started"],
)
def test_a_job_that_keeps_up_has_no_reason_however_its_time_is_spent(code: str, keeps_up: dict[str, Any]) -> None:
    health = health_of(HealthFacts(report={**CAUSES[code], **keeps_up}, is_current=True))
    assert (health.level, health.score, health.reasons) == (HealthLevel.OK, 100, [])


def test_the_first_batch_of_a_driver_is_no_reason() -> None:
    assert codes(report(recent_batches=batches())) == []


@pytest.mark.parametrize("code", CAUSES)
def test_an_outdated_report_gives_no_reason(code: str) -> None:
    health = health_of(HealthFacts(report=CAUSES[code], is_current=False))
    assert (health.level, health.score, health.reasons) == (HealthLevel.UNKNOWN, None, [])


def test_the_hot_key_group_and_the_slow_sink_are_named() -> None:
    hot = health_of(HealthFacts(report=CAUSES["HOT_KEY_GROUP"], is_current=True)).reasons[0]
    assert "key group 7 of operator counts has 80% of the records" in hot.message
    assert not hot.more_subtasks_help
    slow = health_of(HealthFacts(report=CAUSES["SINK_SLOW"], is_current=True)).reasons[0]
    assert "sink table" in slow.message


def test_more_subtasks_help_a_job_behind_only_if_they_help_its_worst_cause() -> None:
    for code, helps in (
        ("FUNCTION_SLOW", True),
        ("SUBTASK_SKEW", True),
        ("HOT_KEY_GROUP", False),
        ("SINK_SLOW", False),
    ):
        cause, behind = health_of(HealthFacts(report=CAUSES[code], is_current=True)).reasons
        assert (cause.more_subtasks_help, behind.more_subtasks_help) == (helps, helps)


def test_an_overloaded_host_is_named_beside_the_cause() -> None:
    waiting = [subtask(at, 4000, processor_wait_ms=2000) for at in range(2)]
    assert codes(report([operator(*waiting)], function=4000)) == ["FUNCTION_SLOW", "FALLING_BEHIND", "HOST_OVERLOADED"]


def test_garbage_collection_is_named_beside_the_cause() -> None:
    found = codes(report(sink=4000, garbage_collection_ratio=0.5))
    assert found == ["SINK_SLOW", "GARBAGE_COLLECTION", "FALLING_BEHIND"]
    assert codes(report(garbage_collection_ratio=0.19)) == ["FALLING_BEHIND"]


def test_a_job_whose_lag_stays_is_behind_and_one_whose_sources_cannot_count_may_be() -> None:
    assert codes(report(sink=4000, lag_growth=0.0)) == ["SINK_SLOW", "BEHIND"]
    uncounted = {"pending_records": None, "lag_growth": None}
    assert codes(report(sink=8000, **uncounted)) == ["SINK_SLOW", "BATCHES_WITHOUT_PAUSE"]
    assert codes(report(sink=4000, **uncounted)) == [], "short batches may follow each other without a lag"


def test_a_long_batch_is_no_lag_until_a_minute_of_input_waits() -> None:
    long = {"function": 18_000, "operators": [operator(subtask(0, 18_000), subtask(1, 17_000))]}
    assert codes(report(**long, pending_records=50_000)) == []
    assert codes(report(**long, pending_records=61_000)) == ["FUNCTION_SLOW", "FALLING_BEHIND"]


def test_a_report_of_an_older_driver_gives_no_reason() -> None:
    assert codes({"batches": 5, "operators": [{"uid": "counts", "subtasks": [{"index": 0}]}]}) == []
    known_parts = [{"batch_id": at, "at_ms": 1, "input_records": 4000, "sink_ms": 4000} for at in range(3)]
    assert codes({**report(), "recent_batches": known_parts}) == ["SINK_SLOW", "FALLING_BEHIND"]


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_the_subtask_that_the_others_wait_for_is_named_wherever_it_is(slow: int) -> None:
    subtasks = [subtask(index, 4000 if index == slow else 900 + index, store_ms=100) for index in range(3)]
    told = report([operator(*subtasks, hot=200)], function=4000)
    (skew,) = (
        each for each in health_of(HealthFacts(report=told, is_current=True)).reasons if each.code == "SUBTASK_SKEW"
    )
    assert f"subtask {slow} of operator counts works 4.1 s" in skew.message
    assert "the other subtasks 1.0 s on average" in skew.message


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"batch_records": 99}, []),
        ({"batch_records": 100, "key_groups": [{"key_group": 7, "records": 75}]}, ["HOT_KEY_GROUP"]),
        ({"batch_records": 100, "key_groups": [{"key_group": 7, "records": 74}]}, ["SUBTASK_SKEW"]),
        ({"key_groups": []}, ["SUBTASK_SKEW"]),
        ({"subtasks": [subtask(0, 4000)], "key_groups": [{"key_group": 7, "records": 740}]}, []),
        ({"subtasks": [subtask(0, 4000)], "key_groups": [{"key_group": 7, "records": 750}]}, ["HOT_KEY_GROUP"]),
        ({"subtasks": [subtask(0, 3000), subtask(1, 1000)], "key_groups": []}, ["SUBTASK_SKEW"]),
        ({"subtasks": [subtask(0, 3000), subtask(1, 1001)], "key_groups": []}, []),
    ],
)
def test_work_is_uneven_from_its_limits_on(changed: dict[str, Any], expected: list[str]) -> None:
    uneven = {**operator(subtask(0, 4000), subtask(1, 1000), hot=200), **changed}
    found = codes(report([uneven], function=4000))
    assert [code for code in found if code in {"HOT_KEY_GROUP", "SUBTASK_SKEW"}] == expected


OVERLOADED = report([operator(*(subtask(at, 4000, processor_wait_ms=2000) for at in range(2)))], function=4000)


@pytest.mark.parametrize(
    ("told", "code", "severity", "message"),
    [
        (
            CAUSES["HOT_KEY_GROUP"],
            "HOT_KEY_GROUP",
            55,
            "key group 7 of operator counts has 80% of the records, which one subtask must process",
        ),
        (
            CAUSES["SUBTASK_SKEW"],
            "SUBTASK_SKEW",
            45,
            "subtask 0 of operator counts works 4.0 s in a batch, the other subtasks 1.0 s on average, and then wait",
        ),
        (
            CAUSES["FUNCTION_SLOW"],
            "FUNCTION_SLOW",
            52,
            "functions and their state take 88% of a batch, most of it the function of operator counts",
        ),
        (
            CAUSES["SINK_SLOW"],
            "SINK_SLOW",
            50,
            "sink table takes most of the 4.0 s in which a batch is written, 79% of its time",
        ),
        (CAUSES["STORE_SLOW"], "STORE_SLOW", 49, "a batch waits 3.5 s for the object store, 77% of its time"),
        (
            CAUSES["BATCHES_TOO_SMALL"],
            "BATCHES_TOO_SMALL",
            54,
            "a batch takes 12 records, and 96% of its 990 ms is a fixed cost",
        ),
        (
            report(garbage_collection_ratio=0.3),
            "GARBAGE_COLLECTION",
            32,
            "the JVMs collect garbage for 30% of the tasks' time",
        ),
        (OVERLOADED, "HOST_OVERLOADED", 23, "tasks wait for a processor of their host for 50% of their time"),
        (
            CAUSES["SINK_SLOW"],
            "FALLING_BEHIND",
            30,
            "50,000 records wait, the input of 50 s, and 200 more with each second",
        ),
        (
            report(sink=4000, lag_growth=-10.0, pending_records=79_000),
            "BEHIND",
            15,
            "79,000 records wait, the input of 100 s, and the job hardly catches up",
        ),
        (
            report(sink=8000, pending_records=None, lag_growth=None),
            "BATCHES_WITHOUT_PAUSE",
            10,
            "batches of 8.1 s follow each other without a pause, and the sources do not count the records that wait",
        ),
    ],
)
def test_each_cause_has_its_points_and_its_numbers(
    told: dict[str, Any], code: str, severity: int, message: str
) -> None:
    reasons = health_of(HealthFacts(report=told, is_current=True)).reasons
    assert [(each.severity, each.message) for each in reasons if each.code == code] == [(severity, message)]


def test_the_slow_operator_and_not_the_first_one_is_named() -> None:
    slow = {**operator(subtask(0, 2000), subtask(1, 1900)), "uid": "slow"}
    others = [{**operator(subtask(0, busy_ms)), "uid": f"quick{busy_ms}"} for busy_ms in (700, 600)]
    (found, _) = health_of(
        HealthFacts(report=report([others[0], slow, others[1]], function=4600), is_current=True)
    ).reasons
    assert found.message.endswith("the function of operator slow")
