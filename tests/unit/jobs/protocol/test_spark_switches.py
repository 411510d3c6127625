from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, REQUIRED_SETTINGS
from keyscale.jobs.protocol.spark_switches import (
    SPARK_WITHOUT_VARIABLE,
    SparkSwitchUnknownError,
    SparkUse,
    switched_off,
    without_switched_off,
)

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {**DEFAULT_SETTINGS, **REQUIRED_SETTINGS}


def test_nothing_is_switched_off_unless_it_is_named() -> None:
    assert switched_off({}) == switched_off({SPARK_WITHOUT_VARIABLE: ""}) == frozenset()
    assert without_switched_off(SETTINGS, {}) == SETTINGS


def test_several_uses_are_named_with_commas_between_them() -> None:
    environment = {SPARK_WITHOUT_VARIABLE: "affinity, source-inputs"}
    assert switched_off(environment) == {SparkUse.AFFINITY, SparkUse.SOURCE_INPUTS}


@pytest.mark.parametrize(
    ("use", "setting"),
    [
        ("worker-exchange", "spark.python.daemon.module"),
        ("checkpoint-files", "spark.sql.streaming.checkpointFileManagerClass"),
    ],
)
def test_a_use_that_is_a_setting_is_switched_off_by_leaving_the_setting_out(use: str, setting: str) -> None:
    left = without_switched_off(SETTINGS, {SPARK_WITHOUT_VARIABLE: use})
    assert set(SETTINGS) - set(left) == {setting}


def test_a_name_that_is_no_use_is_refused() -> None:
    with pytest.raises(SparkSwitchUnknownError, match="'afinity'"):
        switched_off({SPARK_WITHOUT_VARIABLE: "afinity"})


def test_a_driver_starts_without_an_archive_that_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ClassArchive.at(tmp_path)
    archive.path.write_bytes(b"built")
    monkeypatch.setenv(SPARK_WITHOUT_VARIABLE, "class-archive")
    assert str(archive.path) not in archive.settings()["spark.driver.extraJavaOptions"]
