"""Relied on: settings of Spark by their names.

A failure here means that Spark silently ignores one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

# Read by its name alone, and so unknown to Spark's list of settings.
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
NAMES = sorted({*REQUIRED_SETTINGS, *DEFAULT_SETTINGS, *LOCAL_SETTINGS} - {FILE_MANAGER})


@pytest.mark.parametrize("name", NAMES)
def test_spark_knows_the_setting(spark: SparkSession, name: str) -> None:
    known = spark._jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name)
    assert known is not None, f"Spark {spark.version} has no setting {name}; see why it is set, and what replaces it"


def test_spark_has_the_class_that_writes_checkpoint_directories(spark: SparkSession) -> None:
    name = DEFAULT_SETTINGS[FILE_MANAGER]
    assert spark._jvm.java.lang.Class.forName(name).getName() == name


def test_spark_writes_checkpoint_directories_with_the_class_that_is_set(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    session = spark.newSession()
    session.conf.set(FILE_MANAGER, "no.such.Class")
    stream = session.readStream.schema("number bigint").json(str(tmp_path / "in"))
    with pytest.raises(Exception, match=r"no\.such\.Class"):
        stream.writeStream.foreachBatch(print).option("checkpointLocation", str(tmp_path / "positions")).start()


def test_many_files_of_a_batch_are_listed_by_few_tasks(spark: SparkSession, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(40)]
    for file in files:
        file.touch()
    context = spark.sparkContext
    context.setJobGroup(str(tmp_path), "list")
    spark.read.schema("number bigint").json([str(file) for file in files])
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(tmp_path))]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    context.setLocalProperty("spark.jobGroup.id", None)  # of this thread, which other tests share
    assert [stage.numTasks for stage in stages if stage is not None] == [16]
