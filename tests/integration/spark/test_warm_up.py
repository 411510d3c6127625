"""A driver warms up before its first batch."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from keyscale.jobs.runtime.driver.rehearsal import Rehearsal
from keyscale.jobs.runtime.preparation.warm_up import WarmUp, start_workers
from tests.support.spark.python_workers import kill_python_workers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

PARALLELISM = 2


def test_workers_that_are_started_ahead_have_imported_what_tasks_need(spark: SparkSession) -> None:
    kill_python_workers()  # idle workers of other tests may have imported nothing
    start_workers(spark, PARALLELISM).join()
    tasks = spark.sparkContext.parallelize(range(PARALLELISM), PARALLELISM)
    assert tasks.map(lambda _: "keyscale.jobs.runtime.executor.task" in sys.modules).collect() == [True] * PARALLELISM


def test_a_driver_continues_if_no_workers_can_be_started_ahead(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        start_workers(cast("SparkSession", SimpleNamespace()), PARALLELISM).join()
    assert "no workers were started ahead" in caplog.text


def test_a_warm_up_runs_its_job_twice_without_a_failure_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "warm-up"
    warm_up = WarmUp(spark, directory, PARALLELISM)
    with caplog.at_level(logging.INFO):
        warm_up.start()
        warm_up.wait()
        warm_up.finish()
    assert "warm after" in caplog.text
    assert "the warm-up failed" not in caplog.text
    assert not directory.exists()


def test_a_spare_rehearses_a_job_of_keyscale_that_restores_what_it_has_committed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = sys.modules["__main__"]
    # A job sets the session's splits; the session of all tests keeps its own.
    rehearsal = Rehearsal(spark.newSession(), tmp_path / "warm-up", PARALLELISM, tmp_path / "state")
    with caplog.at_level(logging.INFO):
        rehearsal.start()
        rehearsal.wait()
        rehearsal.finish()
    assert caplog.text.count("first commit") == 2
    assert "attempt 2 opened (0 times before) after batch 0" in caplog.text
    assert "warm after" in caplog.text
    assert "the warm-up failed" not in caplog.text
    assert not (tmp_path / "warm-up").exists()
    assert sys.modules["__main__"] is main
