"""StatefulProcessors of the shapes that Spark's own documentation has, for tests that compare what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # publishes no types
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

# ruff: noqa: N802, N803, ARG002 - Spark's names, and arguments that not every processor reads


class CountWords(StatefulProcessor):
    """Counts a key's rows, and adds up their amounts."""

    def init(self, handle: Any) -> None:
        self.counts = handle.getValueState("counts", "rows bigint, total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        count, total = self.counts.get() if self.counts.exists() else (0, 0)
        for row in rows:
            count, total = count + 1, total + row.amount
        self.counts.update((count, total))
        yield Row(id=key[0], what="count", number=count)
        yield Row(number=total, id=key[0], what="total")

    def close(self) -> None:
        pass


class CountWordsInPandas(CountWords):
    """The same on frames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        count, total = self.counts.get() if self.counts.exists() else (0, 0)
        for frame in rows:
            count, total = count + len(frame), total + frame["amount"].sum()
        self.counts.update((np.int64(count), total))
        yield pd.DataFrame({"what": ["count", "total"], "number": [count, total], "id": [key[0]] * 2})


class RunningMaximum(StatefulProcessor):
    """Emits a key's highest amount whenever it rises; never reads more rows than it must."""

    def init(self, handle: Any) -> None:
        self.highest = handle.getValueState("highest", T.StructType().add("value", T.LongType()))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            before = self.highest.get()
            if before is None or row.amount > before[0]:
                self.highest.update((row.amount,))
                yield Row(id=key[0], what="max", number=row.amount)
            if row.amount == 9:
                self.highest.clear()
                return


class History(StatefulProcessor):
    """Keeps rows in a list and amounts in a map, and says what is there."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getListState("seen", "at bigint")
        self.by_amount = handle.getMapState("by_amount", "amount bigint", "rows bigint, latest bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.seen.appendValue((row.at,))
            slot = (row.amount,)
            rows_there = self.by_amount.getValue(slot)[0] if self.by_amount.containsKey(slot) else 0
            self.by_amount.updateValue(slot, (rows_there + 1, row.at))
        if sum(1 for _ in self.seen.get()) > 6:
            self.seen.put(list(self.seen.get())[-2:])
            self.seen.appendList([(1,), (2,)])
        for (amount,), (count, latest) in sorted(self.by_amount.iterator()):
            yield Row(id=key[0], what=f"{amount} at {latest}", number=count)
            if count > 3:
                self.by_amount.removeKey((amount,))
        yield Row(id=key[0], what="map", number=len(list(self.by_amount.keys())) + len(list(self.by_amount.values())))
        yield Row(id=key[0], what="list", number=sum(at for (at,) in self.seen.get()))
        if len(list(self.by_amount.keys())) in {0, 6, 7}:
            self.by_amount.clear()
            self.seen.clear()
        if (
            self.by_amount.exists() == self.seen.exists()
        ):  # Spark's tester says of a map that was emptied that it exists
            yield Row(id=key[0], what="there", number=int(self.by_amount.exists()))


class Reminders(StatefulProcessor):
    """Registers timers, lists them, deletes some, and registers further ones when one fires."""

    def __init__(self, mode: str) -> None:
        self.by_event = mode == "EventTime"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentWatermarkInMs() if self.by_event else timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            if row.amount == 0:
                for timer in sorted(self.handle.listTimers())[:1]:  # Spark lists them in no order
                    self.handle.deleteTimer(timer)
            else:
                self.handle.registerTimer(now + 20 * abs(row.amount))
                self.handle.registerTimer(now + 20 * abs(row.amount))
        yield Row(id=key[0], what=f"timers {sorted(self.handle.listTimers())}", number=0)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        fired = (self.fired.get() or (0,))[0] + 1
        self.fired.update((fired,))
        yield Row(id=key[0], what=f"fired {at} of {sorted(self.handle.listTimers())}", number=fired)
        if fired % 3 == 1:
            self.handle.registerTimer(at + 50_000)
            if not self.by_event:
                self.handle.registerTimer(at)
