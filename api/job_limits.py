"""The most that a job may ask for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import JobLimitError, SettingInvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CORES = ("spark.cores.max", "spark.driver.cores", "spark.executor.cores", "spark.task.cpus")
_MEMORY = (
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.pyspark.memory",
    "spark.kryoserializer.buffer.max",
    "spark.python.worker.memory",
)
_SIZE = re.compile(r"([0-9]{1,15})\s*([kmgtp]?)b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "": 1 << 20, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}  # without one: MiB


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of a job.

    Attributes:
        parallelism_max: Subtasks per operator, each with a Python worker.
        cores_max: Processor cores, of the job and of each of its processes.
        executors_max: Executors.
        memory_bytes_max: Memory of each kind, per process.
    """

    parallelism_max: int = 1024
    cores_max: int = 1024
    executors_max: int = 256
    memory_bytes_max: int = 64 << 30

    def check(self, parallelism: int, conf: Mapping[str, str]) -> None:
        """Checks a job's parallelism and Spark settings.

        Raises:
            JobLimitError: The job asks for more than a limit, or a value is not a number.
        """
        self.check_parallelism(parallelism)
        for key in _CORES:
            _check_count(key, conf.get(key), self.cores_max)
        _check_count("spark.executor.instances", conf.get("spark.executor.instances"), self.executors_max)
        for key in _MEMORY:
            if key in conf and not 0 <= size_bytes(conf[key], key) <= self.memory_bytes_max:
                raise JobLimitError(f"{key} is at most {self.memory_bytes_max >> 20}m here")

    def check_parallelism(self, parallelism: int) -> None:
        """Checks a parallelism.

        Raises:
            JobLimitError: The parallelism is above the limit.
        """
        if parallelism > self.parallelism_max:
            raise JobLimitError(f"parallelism is at most {self.parallelism_max} here")

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> JobLimits:
        """Reads KEYSCALE_JOB_PARALLELISM_MAX, _CORES_MAX, _EXECUTORS_MAX and _MEMORY_MAX.

        Raises:
            SettingInvalidError: A value is not a number above zero.
        """
        memory = "KEYSCALE_JOB_MEMORY_MAX"
        try:
            memory_bytes_max = (
                size_bytes(variables[memory], memory) if variables.get(memory) else cls().memory_bytes_max
            )
        except JobLimitError as error:
            raise SettingInvalidError(error.detail) from None
        return cls(
            parallelism_max=_count(variables, "KEYSCALE_JOB_PARALLELISM_MAX", cls().parallelism_max),
            cores_max=_count(variables, "KEYSCALE_JOB_CORES_MAX", cls().cores_max),
            executors_max=_count(variables, "KEYSCALE_JOB_EXECUTORS_MAX", cls().executors_max),
            memory_bytes_max=memory_bytes_max,
        )


def size_bytes(text: str, name: str) -> int:
    """Parses a size in Spark's notation, such as `512m` or `4g`.

    Raises:
        JobLimitError: The text is not a size.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise JobLimitError(f"{name} is not a size such as 512m or 4g")
    return int(found[1]) * _UNITS[found[2].lower()]


def _check_count(key: str, text: str | None, count_max: int) -> None:
    if text is None:
        return
    if not text.isdigit() or not text.isascii() or not 1 <= int(text) <= count_max:
        raise JobLimitError(f"{key} is a number from 1 to {count_max} here")


def _count(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1 << 31:
        raise SettingInvalidError(f"{name} must be a number above zero")
    return int(text)
