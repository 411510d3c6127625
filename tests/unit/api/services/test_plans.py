"""The decisions of a plan: the specification after a change, the settings that it touches, the downtime to expect."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.schemas.revision import SpecificationChange
from keyscale.api.services.plans import downtime, proposed, settings_changed
from keyscale.db.models import Revision


def revision() -> Revision:
    return Revision(
        job_id="id",
        artifact_id="first",
        parallelism=2,
        parameters={"input": "/in", "password": "old-secret", "db": {"secret": "DB"}},
        secrets=["DB"],
        spark_conf={"spark.executor.memory": "1g"},
        checkpoints={"interval_ms": 1000, "retained_count": 3},
        restart={"type": "none"},
        batch_interval_ms=50,
    )


def after(**fields: Any) -> dict[str, Any]:
    return proposed(revision(), SpecificationChange.model_validate(fields))


def test_fields_that_are_not_given_stay_as_they_are() -> None:
    unchanged = after(message="why")
    assert settings_changed(revision(), unchanged, runs=True) == []


def test_parameters_and_settings_are_merged_and_null_removes_one() -> None:
    changed = after(parameters={"input": "/other", "db": None, "more": {"secret": "KEY"}}, spark_conf={"spark.a": "b"})
    assert changed["parameters"] == {"input": "/other", "password": "old-secret", "more": {"secret": "KEY"}}
    assert changed["secrets"] == ["DB", "KEY"]
    assert changed["spark_conf"] == {"spark.executor.memory": "1g", "spark.a": "b"}


def test_of_checkpoints_only_the_sent_settings_change() -> None:
    assert after(checkpoints={"interval_ms": 5000})["checkpoints"] == {"interval_ms": 5000, "retained_count": 3}


def test_null_takes_a_restart_strategy_and_a_batch_interval_away() -> None:
    changed = after(restart=None, batch_interval_ms=None, artifact_id=None)
    assert (changed["restart"], changed["batch_interval_ms"], changed["artifact_id"]) == (None, None, "first")


def test_changed_settings_are_named_one_by_one_and_secrets_are_masked() -> None:
    found = settings_changed(
        revision(), after(parallelism=4, parameters={"password": "new-secret", "db": "plain"}), runs=True
    )
    assert [(each.name, each.before, each.after) for each in found] == [
        ("parallelism", "2", "4"),
        ("parameters.db", "secret DB", "plain"),
        ("parameters.password", "*****", "*****"),
    ]


@pytest.mark.parametrize("runs", [True, False])
def test_only_a_running_job_is_restarted_for_a_setting(runs: bool) -> None:
    [setting] = settings_changed(revision(), after(parallelism=4), runs=runs)
    assert setting.needs_restart == runs


def test_the_downtime_to_expect_is_the_median_of_the_last_changes_or_says_why_there_is_none() -> None:
    assert downtime([900, 100, 200], runs=True).expected_ms == 200
    assert downtime([], runs=True).reason == "no change of this kind was made while the job ran"
    assert downtime([100], runs=False).expected_ms is None
