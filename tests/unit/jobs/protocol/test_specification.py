"""A specification is changed by a merge patch and compared by path, as its settings are declared."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from keyscale.jobs.protocol.declared_settings import declared_settings
from keyscale.jobs.protocol.messages import Assignment, LiveSettings
from keyscale.jobs.protocol.specification import (
    ChangeClass,
    CheckpointSettings,
    Difference,
    FixedDelayRestart,
    JobSpec,
    NoRestart,
    change_class_of,
    changed,
    default_max_parallelism,
    defines_program,
    differences,
    followed,
)
from tests.support.drivers.assignments import assignment

PRESENT = JobSpec.model_validate(
    {
        "artifact_id": "a",
        "parallelism": 2,
        "parameters": {"input": "/in", "password": {"secret": "DATABASE"}},
        "spark_conf": {"spark.driver.memory": "1g"},
        "checkpoints": {"interval_ms": 1000},
        "restart": {"type": "none"},
    }
)


def test_defaults_are_filled_in_and_the_number_of_key_groups_follows_from_the_parallelism() -> None:
    given = JobSpec(artifact_id="a").given()
    assert given.keys() == JobSpec.model_fields.keys()
    assert (given["parallelism"], given["max_parallelism"], given["checkpoints"]["interval_ms"]) == (1, 128, 10_000)
    assert JobSpec(artifact_id="a", parallelism=200).max_parallelism == 512
    assert JobSpec.model_validate(PRESENT.given()) == PRESENT


@pytest.mark.parametrize(
    "wrong",
    [
        {"parallelism": "2"},
        {"parallelism": True},
        {"parallelism": 0},
        {"max_parallelism": 32_769},
        {"hash_id": "python"},
        {"libraries": ["../x"]},
        {"parameters": {"a": 1}},
        {"parameters": {"a": {"secret": "A", "more": "b"}}},
        {"parameters": {str(number): "x" for number in range(201)}},
        {"secrets": ["no space"]},
        {"checkpoints": {"interval_ms": 99}},
        {"checkpoints": {"unknown": 1}},
        {"restart": {"type": "none", "attempts": 3}},
        {"restart": {"attempts": 3}},
        {"restart": {"type": "exponential-delay", "initial_backoff_ms": 9, "max_backoff_ms": 8}},
        {"batch_interval_ms": -1},
        {"autoscaler": {"mode": "ON"}},
        {"autoscaler": {"excluded_hours": ["8-9"]}},
        {"autoscaler": {"excluded_hours": ["08:00-24:00"]}},
        {"autoscaler": {"excluded_hours": ["08:00-08:00"]}},
        {"autoscaler": {"parallelism_min": 3, "parallelism_max": 2}},
        {"unknown": 1},
    ],
)
def test_a_value_of_another_type_or_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"artifact_id": "a", **wrong})


def test_the_secrets_of_parameters_are_added_to_the_named_secrets() -> None:
    assert PRESENT.secrets == ["DATABASE"]
    assert changed(PRESENT, {"parameters": {"key": {"secret": "ORDERS"}}}).secrets == ["DATABASE", "ORDERS"]
    assert changed(PRESENT, {"secrets": []}).secrets == ["DATABASE"], "a parameter still names it"


def test_a_job_that_gets_all_secrets_goes_on_to_get_them() -> None:
    old = PRESENT.model_copy(update={"secrets": None})
    assert changed(old, {"parameters": {"key": {"secret": "ORDERS"}}}).secrets is None
    assert changed(old, {"secrets": None}).secrets == ["DATABASE"]


def test_a_change_that_gives_nothing_changes_nothing() -> None:
    assert changed(PRESENT, {}) == PRESENT
    assert changed(PRESENT, {"parameters": {"input": "/in"}, "parallelism": 2}) == PRESENT


def test_settings_with_entries_are_merged_and_null_removes_one() -> None:
    sent = {"parameters": {"input": None, "type": "/out"}, "checkpoints": {"timeout_ms": 9000}}
    new = changed(PRESENT, {**sent, "spark_conf": {"spark.a": "b"}})
    assert new.given()["parameters"] == {"password": {"secret": "DATABASE"}, "type": "/out"}
    assert new.checkpoints == CheckpointSettings(interval_ms=1000, timeout_ms=9000)
    assert new.spark_conf == {"spark.driver.memory": "1g", "spark.a": "b"}
    assert changed(new, {"parameters": {"type": "/other"}}).given()["parameters"].keys() == {"password", "type"}


def test_null_resets_a_setting_to_its_default() -> None:
    new = changed(PRESENT, {"restart": None, "parallelism": None, "checkpoints": {"interval_ms": None}})
    assert (new.restart, new.parallelism, new.checkpoints.interval_ms) == (None, 1, 10_000)
    assert changed(PRESENT, {"parameters": None}).parameters == {}
    with pytest.raises(ValidationError):
        changed(PRESENT, {"artifact_id": None})


@pytest.mark.parametrize("change", [{"paralelism": None}, {"checkpoints": {"intervall_ms": None}}])
def test_null_does_not_reset_a_setting_that_does_not_exist(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        changed(PRESENT, change)


def test_null_removes_an_entry_that_may_be_gone() -> None:
    assert changed(PRESENT, {"parameters": {"gone": None}, "restart": {"type": "none", "attempts": None}}) == PRESENT


def test_a_restart_strategy_is_merged_with_one_of_its_type_and_replaces_one_of_another() -> None:
    first = changed(PRESENT, {"restart": {"type": "fixed-delay", "attempts": 4, "delay_ms": 7}})
    assert changed(first, {"restart": {"attempts": 5}}).restart == FixedDelayRestart(attempts=5, delay_ms=7)
    assert changed(first, {"restart": {"type": "none"}}).restart == NoRestart()


def test_differences_are_named_entry_by_entry() -> None:
    new = changed(PRESENT, {"parallelism": 4, "parameters": {"input": "/other"}, "restart": None})
    assert differences(PRESENT, new) == [
        Difference("parallelism", 2, 4),
        Difference("parameters.input", "/in", "/other"),
        Difference("restart", {"type": "none"}, None),
    ]
    assert differences(PRESENT, PRESENT) == []


def test_differences_name_the_options_of_a_strategy_of_one_type() -> None:
    first, second = (changed(PRESENT, {"restart": {"type": "fixed-delay", "attempts": each}}) for each in (1, 2))
    assert differences(first, second) == [Difference("restart.attempts", 1, 2)]
    [other] = differences(first, PRESENT)
    assert (other.path, other.after) == ("restart", {"type": "none"})


def test_every_setting_has_a_class_of_change_and_its_parts_may_have_others() -> None:
    classes = {name: change_class_of(name) for name in JobSpec.model_fields}
    assert {name for name, each in classes.items() if each is ChangeClass.FIXED} == {"max_parallelism", "hash_id"}
    assert change_class_of("checkpoints.interval_ms") is ChangeClass.AT_ONCE
    assert change_class_of("checkpoints.store_outage_max_ms") is ChangeClass.RESTART
    assert change_class_of("parameters.checkpoints") is ChangeClass.RESTART
    assert change_class_of("batch_interval_ms") is ChangeClass.NEXT_BATCH
    assert change_class_of("parallelism") is ChangeClass.RESCALE


def test_the_declaration_of_a_program_depends_on_what_its_script_reads() -> None:
    assert [name for name in JobSpec.model_fields if defines_program(name)] == [
        "artifact_id",
        "libraries",
        "parameters",
        "secrets",
        "spark_conf",
    ]


def test_a_running_driver_follows_the_settings_that_need_no_restart() -> None:
    sent = {"batch_interval_ms": 5, "checkpoints": {"interval_ms": 700, "store_outage_max_ms": 1}, "parallelism": 9}
    newest = changed(PRESENT, {**sent, "restart": None})
    taken = {"batch_interval_ms": 5, "checkpoints": {"interval_ms": 700}, "restart": None}
    assert followed(PRESENT, newest) == changed(PRESENT, taken)


def test_a_setting_of_a_newer_peer_is_left_out_and_a_wrong_value_is_not() -> None:
    sent = assignment(job_id="j", job_name="j", attempt=1, artifact_filename="a.py", artifact_sha256="0", store_url="f")
    message = sent.model_dump(mode="json")
    message["spec"] |= {"newer": 1, "checkpoints": {**message["spec"]["checkpoints"], "newer": 2}}
    assert Assignment.model_validate(message) == sent
    message["spec"]["parallelism"] = 0
    with pytest.raises(ValidationError):
        Assignment.model_validate(message)


def test_a_driver_of_the_last_version_finds_the_settings_where_it_reads_them() -> None:
    message = LiveSettings(revision=3, spec=PRESENT).model_dump(mode="json")
    assert message["checkpoints"] == PRESENT.checkpoints.model_dump()
    assert (message["restart"], message["batch_interval_ms"], message["revision"]) == ({"type": "none"}, None, 3)
    assert LiveSettings.model_validate(message) == LiveSettings(revision=3, spec=PRESENT)


def test_each_setting_is_listed_once_with_its_type_bounds_and_default() -> None:
    found = {each.path: each for each in declared_settings()}
    assert {path.partition(".")[0] for path in found} == JobSpec.model_fields.keys()
    interval = found["checkpoints.interval_ms"]
    assert (interval.type, interval.default, interval.minimum, interval.change_class) == (
        "integer",
        10_000,
        100,
        ChangeClass.AT_ONCE,
    )
    assert found["hash_id"].choices == ("spark", "java")
    assert (found["parameters.*"].type, found["parameters.*.secret"].type) == ("string", "string")
    assert (found["artifact_id"].default, found["max_parallelism"].default) == (None, None)
    assert set(found["restart.type"].choices) == {"none", "fixed-delay", "exponential-delay", "failure-rate"}
    assert set(found["restart.delay_ms"].of_types) == {"fixed-delay", "failure-rate"}
    assert all(each.description for each in found.values())


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (170, 256),
        (171, 256),
        (172, 512),
        (10_922, 16_384),
        (21_845, 32_768),
        (32_768, 32_768),
    ],
)
def test_the_default_number_of_key_groups_is_a_power_of_two_above_one_and_a_half_times_the_parallelism(
    parallelism: int, expected: int
) -> None:
    assert default_max_parallelism(parallelism) == expected
    assert JobSpec(artifact_id="a", parallelism=parallelism).max_parallelism == expected


def test_a_running_driver_follows_each_setting_by_its_class_alone() -> None:
    at_once = {
        "rescale_mode": "STANDBY",
        "key_group_division": "BY_SIZE",
        "autoscaler": {"mode": "ACTIVE", "parallelism_max": 3, "sleep_after_ms": 20_000},
        "savepoints": {"interval_ms": 70_000, "keep_count": 4},
        "restart": {"type": "fixed-delay", "attempts": 3},
        "approval": "REQUIRED",
        "batch_interval_ms": 40,
    }
    checkpoints = {"min_pause_ms": 5, "timeout_ms": 2000, "retained_count": 9, "tolerable_failed_checkpoints": 8}
    with_restart = {
        "artifact_id": "b",
        "libraries": ["package:kafka"],
        "parallelism": 4,
        "parallelism_limit": 9,
        "parameters": {"input": "/other"},
        "secrets": ["MORE"],
        "spark_conf": {"spark.a": "b"},
    }
    newest = changed(PRESENT, {**at_once, "checkpoints": {**checkpoints, "store_outage_max_ms": 1}, **with_restart})
    assert followed(PRESENT, newest) == changed(PRESENT, {**at_once, "checkpoints": checkpoints})
    paths = {each.path: each for each in differences(PRESENT, newest)}
    assert {path for path, each in paths.items() if each.needs_attempt and not each.needs_restart} == {"parallelism"}
    assert {path for path, each in paths.items() if each.needs_restart} == {
        "artifact_id",
        "checkpoints.store_outage_max_ms",
        "libraries",
        "parallelism_limit",
        "parameters.input",
        "secrets",
        "spark_conf.spark.a",
    }
    assert newest.autoscaler.lets_sleep
    assert not changed(newest, {"autoscaler": {"mode": "MONITORING"}}).autoscaler.lets_sleep
    assert not changed(newest, {"autoscaler": {"sleep_after_ms": None}}).autoscaler.lets_sleep


@pytest.mark.parametrize("hours", ["00:00-12:00", "12:00-00:00", "23:59-00:00", "09:30-08:00"])
def test_hours_of_a_day_may_pass_midnight(hours: str) -> None:
    given = JobSpec.model_validate({"artifact_id": "a", "autoscaler": {"excluded_hours": [hours]}})
    assert given.autoscaler.excluded_hours == [hours]
