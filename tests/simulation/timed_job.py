"""The job with timers and operator state: each record has four effects more, at times that batches decide.

Each record sets a timer in event time and one in processing time, and both tell its number. Its number also waits in
the operator state of its subtask until the subtask fires a timer of processing time, and stays in a united list, which
each attempt divides among its subtasks anew. So a reader of the sink sees each timer that was lost or fired twice, and
each number that a rescale lost or doubled.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.state.keyed.batch_clock import TimeDomain
from keyscale.state.keyed.descriptors import ListStateDescriptor
from tests.simulation.job import Count, chained, expected_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keyscale.jobs.functions.process_function import OnTimerContext, ProcessContext, Row, RuntimeContext
    from tests.simulation.job import Record

OUT_OF_ORDER_MS = 2
EVENT_DELAY_MS = 4
PROCESSING_DELAY_MS = 6_000
NUMBERS_MAX = 1_000
"""The numbers of records are below it: a timer of processing time tells the number of its record."""
EVENT, PROCESSING, HELD, UNITED = -1, -2, -3, -4
"""In the place of a count: the kind of a row that is not a record's own."""

_Row = tuple[int, ...]


class TimedCount(Count):
    """Counts, sets two timers per record, and holds numbers in operator state."""

    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        self.parallelism = context.parallelism
        self.held = context.get_operator_list_state(ListStateDescriptor("held", pa.int64()))
        self.united = context.get_union_list_state(ListStateDescriptor("united", pa.int64()))
        if context.is_restored:
            mine = [number for number in self.united.get() if number % self.parallelism == context.subtask_index]
            self.united.update(mine)

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        timers = context.timer_service()
        timers.register_event_time_timer(record.number + EVENT_DELAY_MS)
        due_ms = timers.current_processing_time() + PROCESSING_DELAY_MS
        timers.register_processing_time_timer(due_ms - due_ms % NUMBERS_MAX + record.number)
        self.held.add(record.number)
        self.united.add(record.number)
        yield from super().process_element(record, context)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[_Row]:
        if context.time_domain is TimeDomain.EVENT:
            yield (context.current_key, timestamp - EVENT_DELAY_MS, EVENT, 0)
            return
        yield (context.current_key, timestamp % NUMBERS_MAX, PROCESSING, 0)
        yield from ((0, number, HELD, 0) for number in self.held.get())
        self.held.clear()
        if self.parallelism == 1:
            yield _united(self.united.get())


def wanted_rows(records: Sequence[Record]) -> Counter[_Row]:
    """Returns the rows that a reader sees when every timer that can be due has fired, at parallelism 1 in the end."""
    due = [record for record in records if record.number + EVENT_DELAY_MS <= _last_watermark_ms(records)]
    return Counter(
        [
            *expected_rows(records),
            *((record.key, record.number, EVENT, 0) for record in due),
            *((record.key, record.number, PROCESSING, 0) for record in records),
            *((0, record.number, HELD, 0) for record in records),
            _united([record.number for record in records]),
        ]
    )


def judged_rows(rows: Iterable[_Row], records: Sequence[Record], *, drained: bool) -> Counter[_Row]:
    """Returns the rows to compare with the wanted ones.

    Args:
        rows: All that a reader sees.
        records: All records.
        drained: Whether an attempt has fired all timers of event time at its end.
    """
    found = Counter(rows)
    united = [row for row in found if row[2] == UNITED]
    for row in united:
        del found[row]
    if united:
        found[max(united, key=lambda row: row[1])] = 1
    if drained:
        for record in records:
            if record.number + EVENT_DELAY_MS > _last_watermark_ms(records):
                row = (record.key, record.number, EVENT, 0)
                found[row] = max(0, found[row] - 1)
    return +found


def _united(numbers: Sequence[int]) -> _Row:
    chain = 0
    for number in sorted(numbers):
        chain = chained(chain, number)
    return (0, len(numbers), UNITED, chain)


def _last_watermark_ms(records: Sequence[Record]) -> int:
    """Returns the watermark after all records: the number of a record is its event time."""
    return records[-1].number - OUT_OF_ORDER_MS - 1
