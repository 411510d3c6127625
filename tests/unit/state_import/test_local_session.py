"""The Spark session of an import is on this host, with the settings that the runtime relies on."""

from __future__ import annotations

from keyscale.jobs.protocol.spark_settings import REQUIRED_SETTINGS
from keyscale.state_import.local_session import settings_of


def test_settings_are_those_of_the_user_except_for_what_the_runtime_needs() -> None:
    assert settings_of({})["spark.master"] == "local[*]"
    required, value = next(iter(REQUIRED_SETTINGS.items()))
    found = settings_of({"spark.master": "local[1]", "spark.driver.memory": "2g", required: "other"})
    assert (found["spark.master"], found["spark.driver.memory"]) == ("local[1]", "2g")
    assert found[required] == value
