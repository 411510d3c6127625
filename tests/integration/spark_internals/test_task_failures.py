"""Relied on: the wording of exceptions of failed tasks.

A failure here means that errors say less about what happened.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.jobs.spark_internals.task_failures import failure_text, raised_line, worker_traceback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def raise_in_task(rows: Iterable[object]) -> None:
    raise ValueError(f"a record: {list(rows)}")


def end_worker(_: Iterable[object]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_traceback_of_a_worker_reaches_the_driver(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"ValueError: a record: \['first'\]") as failure:
        spark.sparkContext.parallelize(["first"], 1).foreachPartition(raise_in_task)
    shown = worker_traceback(failure.value)
    assert shown is not None
    assert shown.startswith("Traceback (most recent call last):\n")
    assert "in raise_in_task" in shown
    assert raised_line(shown) == "ValueError: a record: ['first']"


def test_the_exception_of_a_udf_in_a_frame_is_shown_in_the_same_way(spark: SparkSession) -> None:
    inverse = F.udf(lambda value: 1 // value, "bigint")
    with pytest.raises(Exception, match="division") as failure:
        spark.range(1).select(inverse("id")).collect()
    shown = worker_traceback(failure.value)
    assert shown is not None
    assert "in <lambda>" in shown
    assert raised_line(shown).startswith("ZeroDivisionError: integer division")


def test_a_worker_that_was_killed_is_named_as_the_reason(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="worker") as failure:
        spark.sparkContext.parallelize([1], 1).foreachPartition(end_worker)
    assert worker_traceback(failure.value) is None
    line = failure_text(failure.value)
    assert line.startswith("Task 0 in stage ")
    assert "failed 1 times by org.apache.spark." in line
    assert "Python worker exited unexpectedly" in line


def test_an_error_of_an_expression_is_shown_without_a_stack(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="seven") as failure:
        spark.sql("select cast('seven' || id as int) from range(1)").collect()
    text = failure_text(failure.value)
    assert text.startswith("[CAST_INVALID_INPUT] The value 'seven0'")
    assert "\tat " not in text


def test_an_analysis_error_is_named_by_its_condition(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="nowhere") as failure:
        spark.range(1).select("nowhere")
    assert failure_text(failure.value).startswith("[UNRESOLVED_COLUMN")
