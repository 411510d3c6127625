"""A job's counters in the commit log and in manifests.

They stay exact when a driver is killed.
"""

from __future__ import annotations

import msgspec


class JobCounters(msgspec.Struct, frozen=True):
    """The records of all committed batches since the job was created.

    Attributes:
        input_records: Records read.
        output_records: Records emitted to sinks.
        late_records: Late records, and records without event time.
        dead_letters: Records that functions failed on, and rows that sinks put aside.
    """

    input_records: int = 0
    output_records: int = 0
    late_records: int = 0
    dead_letters: int = 0

    def plus(self, other: JobCounters) -> JobCounters:
        """Returns the sums of two sets of counters."""
        return JobCounters(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def at_least(self, other: JobCounters) -> JobCounters:
        """Returns the larger value of each counter.

        Counters only grow, so the larger value is the newer one.
        """
        return JobCounters(**{name: max(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__})


NOTHING_COUNTED = JobCounters()
