"""A processor that does what its records say, with values of every type, and says what it has seen.

It runs in Spark's own operator and in ours: what it says must be the same.
"""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # publishes no types
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale.jobs.transform_with_state.time_mode import TimeMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# ruff: noqa: N802, N803 - Spark's names

UTC = pa.timestamp("us", "UTC")
PLACE = pa.struct([("x", pa.int32()), ("at", UTC), ("marks", pa.map_(pa.string(), pa.int16()))])
TYPES = {
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "some": pa.int64(),  # the only integer that may be null
    "flag": pa.bool_(),
    "single": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "instant": UTC,
    "local": pa.timestamp("us"),
    "price": pa.decimal128(12, 3),
    "many": pa.list_(pa.int32()),
    "instants": pa.list_(UTC),
    "marks": pa.map_(pa.string(), pa.int32()),
    "places": pa.list_(PLACE),
    "place": PLACE,
}
KEYS = {
    "id": pa.string(),
    "id_number": pa.int32(),
    "id_instant": UTC,
    "id_local": pa.timestamp("us"),
    "id_day": pa.date32(),
    "id_price": pa.decimal128(10, 2),
    "id_flag": pa.bool_(),
    "id_raw": pa.binary(),
    "id_double": pa.float64(),
    "id_place": pa.struct([("x", pa.int32()), ("at", UTC)]),
}
SCHEMA = pa.schema({**KEYS, "seq": pa.int64(), "at": UTC, "command": pa.string(), "n": pa.int64(), **TYPES})
INTEGERS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
# Their types in a frame depend on the nulls in it, and in Spark also on the nulls of other keys.
SHOWN = [name for name in TYPES if name not in {"some", "flag", "many"}]

ALL_TYPES = (
    "i8 tinyint, i16 smallint, i32 int, i64 bigint, some bigint, flag boolean, single float, double double,"
    " text string, raw binary, day date, instant timestamp, local timestamp_ntz, price decimal(12, 3), many array<int>,"
    " instants array<timestamp>, marks map<string, int>,"
    " places array<struct<x: int, at: timestamp, marks: map<string, smallint>>>,"
    " place struct<x: int, at: timestamp, marks: map<string, smallint>>"
)
OUTPUT = T.StructType().add("key", T.StringType()).add("seq", T.LongType()).add("said", T.StringType())
PAST, FUTURE = 5_000, 10**14  # in processing time; both are far from any clock

COMMANDS = (
    "update_value", "get_value", "clear_value",
    "append_to_list", "append_to_list", "extend_list", "put_list", "get_list", "clear_list",
    "put_in_map", "put_in_map", "get_from_map", "remove_from_map", "read_map", "clear_map",
    "add_to_total", "add_to_total", "append_to_brief",
    "register_timer", "register_timer", "delete_timer", "list_timers",
)  # fmt: skip


class Step(NamedTuple):
    """A record's command, as state takes its values."""

    values: tuple[Any, ...]
    slot: tuple[Any, ...]
    number: int
    timer: int


class ScriptedProcessor(StatefulProcessor):
    """Does what each record says, and emits a text about it beside the record's own values.

    Attributes:
        mode: The time mode that it runs in.
        in_pandas: Whether it gets and emits DataFrames.
        echo: The names of the columns that it emits.
    """

    def __init__(self, mode: TimeMode, *, in_pandas: bool, echo: Sequence[str]) -> None:
        self.mode = mode
        self.in_pandas = in_pandas
        self.echo = tuple(echo)

    def init(self, handle: Any) -> None:
        self.handle = handle
        by_clock = self.mode is TimeMode.PROCESSING_TIME
        self.value = handle.getValueState("all types", ALL_TYPES, 10**12 if by_clock else None)
        self.list = handle.getListState("läst", ALL_TYPES)
        self.map = handle.getMapState("map", "slot bigint, at timestamp, name string", ALL_TYPES)
        self.total = handle.getValueState("total", T.StructType().add("n", T.LongType()))
        handle.deleteIfExists("brief")
        # Lives no longer than a batch, in each mode.
        self.brief = handle.getListState("brief", "n bigint", 1 if by_clock else None)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        pieces = list(rows)
        said = [f"{shown(key)} at {self.times(timerValues)}"]
        if not self.in_pandas:
            for record in sorted((row.asDict() for row in pieces), key=itemgetter("seq")):
                said += self.answers(record, timerValues)
                echo = {name: record[name] for name in self.echo}
                yield Row(key=shown(key), seq=record["seq"], said="\n".join(said), **echo)
                said = []
            return
        said.append(str([len(frame) for frame in pieces]))
        said.append(str([[str(frame[name].dtype) for name in SHOWN] for frame in pieces]))
        frame = (pd.concat(pieces) if len(pieces) > 1 else pieces[0]).sort_values("seq")
        for values in zip(*(frame[name] for name in frame.columns), strict=True):
            said += self.answers(dict(zip(frame.columns, values, strict=True)), timerValues)
        emitted = frame[["seq", *self.echo]].copy()
        emitted.insert(0, "key", shown(key))
        emitted["said"] = ["\n".join(said), *[None] * (len(frame) - 1)]
        yield emitted

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        fired = (self.total.get() or (0,))[0] + 1
        self.total.update((fired,))
        if fired % 3 == 1:
            self.handle.registerTimer(at + 30)
        if fired % 3 == 2:
            self.handle.registerTimer(at)
        if fired % 4 == 3:
            self.handle.deleteTimer(at + 1)
        found = [self.times(timerValues), sorted(self.handle.listTimers()), self.value.exists(), fired]
        said = f"timer {at} of {shown(key)}: {found}"
        row = {"key": shown(key_as_in_rows(key, in_pandas=self.in_pandas)), "seq": at, "said": said}
        yield pd.DataFrame([{**row, **dict.fromkeys(self.echo)}]) if self.in_pandas else Row(**row)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        given = initialState["n"].tolist() if self.in_pandas else [initialState.n]
        before = (self.total.get() or (0,))[0]
        self.total.update((before + 1000 * sum(given) + len(shown(key)),))
        self.times(timerValues)

    def answers(self, record: dict[str, Any], times: Any) -> list[str]:
        """Does what a record says, and returns it with the result."""
        number = record["n"]
        at = None if missing(record["instant"]) else record["instant"]
        values = tuple(self.plain(record[name], TYPES[name]) for name in TYPES)
        step = Step(values, (number % 3, at, "a" * (number % 2)), number, self.timer(number, times))
        command = record["command"]
        result = getattr(self, command)(step) if self.mode is not TimeMode.NONE or "timer" not in command else None
        return [f"{command} {shown({name: record[name] for name in SHOWN})}", shown(result)]

    def update_value(self, step: Step) -> None:
        self.value.update(step.values)

    def get_value(self, _: Step) -> Any:
        return self.value.exists(), self.value.get()

    def clear_value(self, _: Step) -> None:
        self.value.clear()

    def append_to_list(self, step: Step) -> None:
        self.list.appendValue(step.values)

    def extend_list(self, step: Step) -> None:
        self.list.appendList([step.values, (None,) * len(step.values), list(step.values)])

    def put_list(self, step: Step) -> None:
        self.list.put([step.values])

    def get_list(self, _: Step) -> Any:
        return self.list.exists(), list(self.list.get())

    def clear_list(self, _: Step) -> None:
        self.list.clear()

    def put_in_map(self, step: Step) -> None:
        self.map.updateValue(step.slot, step.values)

    def get_from_map(self, step: Step) -> Any:
        return self.map.containsKey(step.slot), self.map.getValue(step.slot)

    def remove_from_map(self, step: Step) -> None:
        self.map.removeKey(step.slot)

    def read_map(self, _: Step) -> Any:
        pairs, keys, values = self.map.iterator(), self.map.keys(), self.map.values()
        return self.map.exists(), *(sorted(map(shown, each)) for each in (pairs, keys, values))

    def clear_map(self, _: Step) -> None:
        self.map.clear()

    def add_to_total(self, step: Step) -> Any:
        self.total.update(((self.total.get() or (0,))[0] + step.number,))
        return self.total.get()

    def append_to_brief(self, step: Step) -> Any:
        self.brief.appendValue((step.number,))
        return list(self.brief.get())

    def register_timer(self, step: Step) -> None:
        self.handle.registerTimer(step.timer)

    def delete_timer(self, step: Step) -> None:
        self.handle.deleteTimer(step.timer)

    def list_timers(self, _: Step) -> Any:
        return sorted(self.handle.listTimers())

    def times(self, values: Any) -> list[Any]:
        processing_ms = values.getCurrentProcessingTimeInMs()
        return [processing_ms if processing_ms < 0 else "now", values.getCurrentWatermarkInMs()]

    def timer(self, number: int, times: Any) -> int:
        """Returns the time of a timer: around the watermark; or, as clocks differ, far before or after now."""
        if self.mode is TimeMode.PROCESSING_TIME:
            return (PAST if number % 2 else FUTURE) + number
        watermark: int = times.getCurrentWatermarkInMs()
        return watermark + (number - 50) * 2

    def plain(self, value: Any, kind: pa.DataType) -> Any:
        """Returns a record's value as state takes it: maps are dicts; integers with nulls are no floats."""
        if missing(value):
            return None
        if pa.types.is_integer(kind):
            return None if pd.isna(value) else int(value)
        if pa.types.is_map(kind):
            return dict(value)
        if pa.types.is_struct(kind):
            return {**value, "marks": None if value["marks"] is None else dict(value["marks"])}
        if pa.types.is_list(kind):
            return [self.plain(each, kind.value_type) for each in value]
        return value


def missing(value: Any) -> bool:
    return value is None or (np.ndim(value) == 0 and not isinstance(value, (dict, float)) and bool(pd.isna(value)))


def key_as_in_rows(key: Any, *, in_pandas: bool) -> Any:
    """Returns the key of a timer as rows of the key have it, so that their output is found together."""

    def given(value: Any, name: str) -> Any:
        kind = KEYS[name]
        if value is None:
            return None
        if pa.types.is_struct(kind):
            return {"x": value.x, "at": given(value.at, "id_instant")}
        if pa.types.is_timestamp(kind) and in_pandas:
            return pd.Timestamp(value)
        return value.replace(tzinfo=dt.UTC) if kind == UTC else value

    return tuple(given(value, name) for name, value in zip(key.__fields__, key, strict=True))


def shown(value: Any) -> str:
    """Returns a value with the types of all of its parts."""
    kind = type(value).__name__
    if isinstance(value, Row):
        return (
            "Row("
            + ", ".join(f"{name}={shown(each)}" for name, each in zip(value.__fields__, value, strict=True))
            + ")"
        )
    if isinstance(value, (tuple, list)):
        return f"{kind}({', '.join(map(shown, value))})"
    if isinstance(value, np.ndarray):
        return f"{kind} {value.dtype}({', '.join(map(shown, value))})"
    if isinstance(value, dict):
        return f"{kind}({', '.join(sorted(f'{shown(name)}: {shown(each)}' for name, each in value.items()))})"
    if isinstance(value, dt.datetime):
        return f"{kind} {value.isoformat()}"
    return f"{kind} {value!r}"


def batches(seed: int, *, count: int, rows: int, nulls_in_keys: bool) -> list[pa.Table]:
    """Returns random batches of commands. Records come up to 160 ms out of order."""
    chance = random.Random(seed)
    keys = [_key(chance, number, nulls=nulls_in_keys) for number in range(4)]
    made = []
    for batch in range(count):
        records = []
        for row in range(rows):
            at_ms = None if chance.random() < 0.05 and row else 1_000 + batch * 80 + chance.randrange(-80, 80)
            records.append(
                {
                    **chance.choice(keys),
                    "seq": batch * rows + row,
                    "at": None if at_ms is None else _instant(at_ms),
                    "command": chance.choice(COMMANDS),
                    "n": chance.randrange(100),
                    **_values(chance),
                }
            )
        made.append(pa.Table.from_pylist(records, SCHEMA))
    return made


def initial_state(history: Sequence[pa.Table]) -> pa.Table:
    """Returns an initial state for some keys of the history and one more."""
    return pa.concat_tables([history[0].slice(0, 3), history[-1].slice(0, 1)]).select([*KEYS, "n"])


def _key(chance: random.Random, number: int, *, nulls: bool) -> dict[str, Any]:
    at = _instant(chance.randrange(10**12), micros=chance.randrange(1000))
    key = {
        "id": f"key {number}",
        "id_number": number,
        "id_instant": at,
        "id_local": at.replace(tzinfo=None),
        "id_day": at.date(),
        "id_price": Decimal(number) / 4,
        "id_flag": number % 2 == 0,
        "id_raw": bytes([number, 0]),
        "id_double": number / 3,
        "id_place": {"x": number, "at": at},
    }
    return dict.fromkeys(key) | {"id": None} if nulls and number == 3 else key


def _values(chance: random.Random) -> dict[str, Any]:
    """Returns a value for each type, many of them special: null, extreme, before 1970, or empty."""
    values = {name: chance.choice(choices) for name, choices in _CHOICES.items()}
    extremes = {name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in INTEGERS.items()}
    numbers = {name: chance.choice([0, 1, -1, least, most]) for name, (least, most) in extremes.items()}
    return {**numbers, **values, "place": _place(chance), "places": chance.choice([None, [], [_place(chance)] * 2])}


def _place(chance: random.Random) -> dict[str, Any] | None:
    place = {
        "x": chance.choice([None, 1]),
        "at": chance.choice([None, _instant(-5)]),
        "marks": chance.choice([None, [], [("m", 3)]]),
    }
    return chance.choice([None, place])


def _instant(at_ms: int, *, micros: int = 0) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at_ms, microseconds=micros)


_CHOICES: dict[str, list[Any]] = {
    "some": [None, 7, 2**40],
    "flag": [None, True, False],
    "single": [None, 0.0, 0.1, -3e38, float("inf")],
    "double": [None, 0.0, 0.1, float("nan"), -1e300, float("-inf")],
    "text": [None, "", "é", "a\0b", "日本" * 30],
    "raw": [None, b"", b"\0\xff"],
    "day": [None, dt.date(1600, 2, 29), dt.date(9999, 12, 31), dt.date(2024, 2, 29)],
    "instant": [None, _instant(0), _instant(-1, micros=1), _instant(1_700_000_000_123, micros=7)],
    "local": [None, _instant(-86_400_001).replace(tzinfo=None), _instant(5, micros=9).replace(tzinfo=None)],
    "price": [None, Decimal("0.000"), Decimal("-999999999.999"), Decimal("1.5")],
    "many": [None, [], [1, 2], [3, None]],
    "instants": [None, [], [_instant(7), None]],
    "marks": [None, [], [("k", 1), ("l", None)]],
}
