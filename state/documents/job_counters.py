"""A job's counters in the commit log and in manifests.

They stay exact when a driver is killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from keyscale.metrics import LOG_COUNTERS


class _Counters(msgspec.Struct, frozen=True):
    """The records of all committed batches since the job was created."""

    if TYPE_CHECKING:

        def __init__(self, **numbers: int) -> None: ...

        def __getattr__(self, name: str) -> int: ...

    def plus(self, other: JobCounters) -> JobCounters:
        """Returns the sums of two sets of counters."""
        return JobCounters(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def at_least(self, other: JobCounters) -> JobCounters:
        """Returns the larger value of each counter.

        Counters only grow, so the larger value is the newer one.
        """
        return JobCounters(**{name: max(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__})


if TYPE_CHECKING:

    class JobCounters(_Counters, frozen=True):
        """The counters of `keyscale.metrics` that the commit log keeps."""

else:
    JobCounters = msgspec.defstruct(
        "JobCounters",
        [(metric.name, int, 0) for metric in LOG_COUNTERS],
        bases=(_Counters,),
        module=__name__,
        frozen=True,
    )

NOTHING_COUNTED = JobCounters()
