"""Relied on: the reference into the driver's JVM.

A failure here means that the heap of drivers is unknown.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from keyscale.jobs.spark_internals.jvm_heap import jvm_heap_bytes

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def test_the_heap_of_the_jvm_is_known(spark: SparkSession) -> None:
    heap_bytes = jvm_heap_bytes(spark.sparkContext)
    assert heap_bytes is not None
    assert heap_bytes > 1 << 20


def test_without_the_reference_the_heap_is_unknown() -> None:
    assert jvm_heap_bytes(cast("SparkContext", SimpleNamespace())) is None
