"""A change of a specification merges what has entries, replaces the rest, and is shown field by field."""

from __future__ import annotations

from dataclasses import replace

from keyscale.api.specification import Difference, Specification, changed, differences

PRESENT = Specification(
    artifact_id="a",
    parallelism=2,
    parameters={"input": "/in", "password": {"secret": "DATABASE"}},
    secrets=["DATABASE"],
    spark_conf={"spark.driver.memory": "1g"},
    checkpoints={"interval_ms": 1000, "retained_count": 3},
    restart={"type": "none"},
)


def test_a_change_that_gives_nothing_changes_nothing() -> None:
    assert changed(PRESENT, {}) == PRESENT
    assert changed(PRESENT, {"parameters": {"input": "/in"}, "parallelism": 2}) == PRESENT


def test_parameters_and_settings_are_merged_and_null_removes_one() -> None:
    sent = {"parameters": {"input": None, "output": "/out"}, "checkpoints": {"interval_ms": 9}}
    new = changed(PRESENT, {**sent, "spark_conf": {"spark.a": "b"}})
    assert new.parameters == {"password": {"secret": "DATABASE"}, "output": "/out"}
    assert new.checkpoints == {"interval_ms": 9, "retained_count": 3}
    assert new.spark_conf == {"spark.driver.memory": "1g", "spark.a": "b"}


def test_other_fields_are_replaced_and_null_is_a_value_of_them() -> None:
    new = changed(PRESENT, {"artifact_id": "b", "restart": None})
    assert new == replace(PRESENT, artifact_id="b", restart=None)


def test_a_secret_that_a_new_parameter_names_is_given_to_the_job() -> None:
    assert changed(PRESENT, {"parameters": {"key": {"secret": "ORDERS"}}}).secrets == ["DATABASE", "ORDERS"]
    assert changed(PRESENT, {"secrets": []}).secrets == ["DATABASE"], "a parameter still names it"


def test_a_job_that_gets_all_secrets_goes_on_to_get_them() -> None:
    old = replace(PRESENT, secrets=None)
    assert changed(old, {"parameters": {"key": {"secret": "ORDERS"}}}).secrets is None


def test_differences_are_named_entry_by_entry() -> None:
    new = changed(PRESENT, {"parallelism": 4, "parameters": {"input": "/other"}, "restart": None})
    assert differences(PRESENT, new) == [
        Difference("parallelism", 2, 4),
        Difference("parameters.input", "/in", "/other"),
        Difference("restart", {"type": "none"}, None),
    ]
    assert differences(PRESENT, PRESENT) == []
