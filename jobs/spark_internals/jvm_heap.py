"""The heap of the driver's JVM.

It relies on `SparkContext._jvm`, PySpark's private reference into the JVM (since Spark 0.7), and on Java's own
`Runtime`. Without them, the heap is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it publishes no types

if TYPE_CHECKING:
    from pyspark import SparkContext


def jvm_heap_bytes(context: SparkContext) -> int | None:
    """Returns the used heap of the driver's JVM; None if unknown."""
    try:
        jvm: Any = context._jvm
        runtime = jvm.java.lang.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())
    except (AttributeError, Py4JError):
        return None
