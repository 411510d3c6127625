"""Copies of functions and objects as Spark's Python workers get them.

It relies on `pyspark.cloudpickle`, the copy of cloudpickle that PySpark pickles functions with (since Spark 0.8,
undocumented): what `__main__` defines is pickled by value, what a module defines by name.

It has no switch: operators' logic is sent to the workers in this form.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pyspark import cloudpickle

_Thing = TypeVar("_Thing")


def pickled(thing: Any) -> bytes:
    """Pickles an object as it is sent to workers.

    Raises whatever the object raises if it cannot be pickled.
    """
    data: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]  # as pyspark has it
    return data


def unpickled(data: bytes) -> Any:
    """Returns a new copy of an object that `pickled` has pickled.

    Raises whatever the object's class raises.
    """
    return cloudpickle.loads(data)


def worker_copy(thing: _Thing) -> _Thing:
    """Returns the copy that a worker gets of a task's `thing`."""
    copy: _Thing = unpickled(pickled(thing))
    return copy
