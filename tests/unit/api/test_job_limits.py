from __future__ import annotations

import pytest

from keyscale.api.errors import JobLimitError, SettingInvalidError
from keyscale.api.job_limits import JobLimits, size_bytes

LIMITS = JobLimits(parallelism_max=8, cores_max=16, executors_max=4, memory_bytes_max=4 << 30)


def test_a_job_may_ask_for_as_much_as_the_limits_say() -> None:
    conf = {"spark.cores.max": "16", "spark.executor.instances": "4", "spark.driver.memory": "4g"}
    LIMITS.check(8, {**conf, "spark.executor.memory": "4096m", "spark.locality.wait": "3s"})


@pytest.mark.parametrize(
    ("parallelism", "conf"),
    [
        (9, {}),
        (1, {"spark.cores.max": "17"}),
        (1, {"spark.executor.cores": "0"}),
        (1, {"spark.executor.cores": "-1"}),
        (1, {"spark.executor.instances": "5"}),
        (1, {"spark.executor.instances": "many"}),
        (1, {"spark.driver.memory": "5g"}),
        (1, {"spark.executor.memory": "1p"}),
        (1, {"spark.executor.pyspark.memory": "4097"}),
        (1, {"spark.python.worker.memory": "1e9"}),
    ],
)
def test_a_job_that_asks_for_more_or_for_no_number_is_refused(parallelism: int, conf: dict[str, str]) -> None:
    with pytest.raises(JobLimitError):
        LIMITS.check(parallelism, conf)


def test_a_size_without_a_unit_is_in_mebibytes_as_in_spark() -> None:
    assert [size_bytes(text, "x") for text in ("1", "1m", "1M", "1mb", "1024k", "1g")] == [1 << 20] * 5 + [1 << 30]


def test_limits_are_read_from_the_environment() -> None:
    assert JobLimits.from_environment({}) == JobLimits()
    read = JobLimits.from_environment({"KEYSCALE_JOB_CORES_MAX": "2", "KEYSCALE_JOB_MEMORY_MAX": "8g"})
    assert (read.cores_max, read.memory_bytes_max) == (2, 8 << 30)
    for wrong in ({"KEYSCALE_JOB_CORES_MAX": "0"}, {"KEYSCALE_JOB_MEMORY_MAX": "much"}):
        with pytest.raises(SettingInvalidError, match=next(iter(wrong))):
            JobLimits.from_environment(wrong)


def test_each_limit_has_a_variable_of_its_own() -> None:
    given = {"PARALLELISM": "3", "CORES": "5", "EXECUTORS": "7", "MEMORY": "9m"}
    read = JobLimits.from_environment({f"KEYSCALE_JOB_{name}_MAX": text for name, text in given.items()})
    assert read == JobLimits(parallelism_max=3, cores_max=5, executors_max=7, memory_bytes_max=9 << 20)


@pytest.mark.parametrize(
    ("key", "most", "too_much", "limit"),
    [
        ("spark.cores.max", "16", "17", "a number from 1 to 16"),
        ("spark.driver.cores", "16", "17", "a number from 1 to 16"),
        ("spark.executor.cores", "16", "17", "a number from 1 to 16"),
        ("spark.task.cpus", "16", "17", "a number from 1 to 16"),
        ("spark.executor.instances", "4", "5", "a number from 1 to 4"),
        ("spark.driver.maxResultSize", "4g", "4097m", "at most 4096m"),
        ("spark.driver.memory", "4g", "4097m", "at most 4096m"),
        ("spark.driver.memoryOverhead", "4096", "4097", "at most 4096m"),
        ("spark.executor.memory", "4g", "4097m", "at most 4096m"),
        ("spark.executor.memoryOverhead", "4096", "4097", "at most 4096m"),
        ("spark.executor.pyspark.memory", "4096", "4097", "at most 4096m"),
        ("spark.kryoserializer.buffer.max", "4g", "4097m", "at most 4096m"),
        ("spark.python.worker.memory", "4g", "4097m", "at most 4096m"),
    ],
)
def test_each_setting_of_spark_has_its_limit(key: str, most: str, too_much: str, limit: str) -> None:
    LIMITS.check(1, {key: most})
    with pytest.raises(JobLimitError, match=f"{key} is {limit} here"):
        LIMITS.check(1, {key: too_much})
