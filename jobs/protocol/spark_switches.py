"""Switches for dispensable uses of Spark's internals.

They help if another Spark version breaks such a use. `KEYSCALE_SPARK_WITHOUT` names the uses that are off, separated by
commas. The control plane reads it when it starts a driver, and passes it to the driver. See docs/spark-internals.md.
"""

from __future__ import annotations

import os
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import JobError

if TYPE_CHECKING:
    from collections.abc import Mapping

SPARK_WITHOUT_VARIABLE = "KEYSCALE_SPARK_WITHOUT"


class SparkUse(StrEnum):
    """A use of Spark's internals that can be switched off."""

    AFFINITY = "affinity"
    """Subtasks stay on the executor that holds their state. Without: Spark places them again in every batch."""

    CHECKPOINT_FILES = "checkpoint-files"
    """Spark writes its checkpoint directory with a cheaper class. Without: with its default class."""

    CLASS_ARCHIVE = "class-archive"
    """Drivers start from an archive of Java's loaded classes. Without: they start more slowly."""

    SOURCE_INPUTS = "source-inputs"
    """Spark's plan says how many streams each source reads. Without: each source counts as one stream."""

    WORKER_EXCHANGE = "worker-exchange"
    """Subtasks keep their Python workers. Without: Spark gives a task to any idle worker."""


_SETTINGS = MappingProxyType(
    {
        SparkUse.CHECKPOINT_FILES: "spark.sql.streaming.checkpointFileManagerClass",
        SparkUse.WORKER_EXCHANGE: "spark.python.daemon.module",
    }
)


class SparkSwitchUnknownError(JobError):
    """`KEYSCALE_SPARK_WITHOUT` names an unknown use."""

    code = "SPARK_SWITCH_UNKNOWN"
    domain = "user"
    advice = "Name uses of docs/spark-internals.md in KEYSCALE_SPARK_WITHOUT, separated by commas, or unset it."


def switched_off(environment: Mapping[str, str] = os.environ) -> frozenset[SparkUse]:
    """Returns the uses that an environment switches off.

    Raises:
        SparkSwitchUnknownError: The environment names an unknown use.
    """
    names = [name.strip() for name in environment.get(SPARK_WITHOUT_VARIABLE, "").split(",")]
    try:
        return frozenset(SparkUse(name) for name in names if name)
    except ValueError as error:
        raise SparkSwitchUnknownError(f"{SPARK_WITHOUT_VARIABLE} has {error}") from error


def without_switched_off(settings: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns Spark settings without the settings of disabled uses.

    Raises:
        SparkSwitchUnknownError: The environment names an unknown use.
    """
    left_out = {_SETTINGS.get(use) for use in switched_off(environment)}
    return {key: value for key, value in settings.items() if key not in left_out}
