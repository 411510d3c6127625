"""Stored values of several formats: what is written, read and restamped, and what is no stored value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.errors import CorruptValueError
from keyscale.state.keyed.formats import NULL_FLAG, ValueFormats, expiry_check
from keyscale.state.keyed.schema import StateKind, StateSchema, ValueFormat
from keyscale.state.keyed.stamp import STAMP_MAX_MS, STAMP_MIN_MS, decode_stamp, encode_stamp, encode_stamps

PLAIN, WIDER = ValueFormat("int32"), ValueFormat("int64")
STAMPED, BY_EVENTS = ValueFormat("int64", "processing"), ValueFormat("int64", "event")


def formats(*known: ValueFormat, write: int = -1) -> ValueFormats:
    return ValueFormats(StateSchema("s", StateKind.VALUE, known), range(len(known))[write])


ALL = (PLAIN, WIDER, STAMPED, BY_EVENTS)
AT_MS = 1_700_000_000_123


def test_a_stored_value_has_the_number_of_its_format_its_stamp_and_its_payload() -> None:
    assert formats(PLAIN).pack(7, AT_MS) == b"\0" + (7).to_bytes(4, "little")
    assert formats(*ALL).pack(7, AT_MS) == b"\3" + encode_stamp(AT_MS) + (7).to_bytes(8, "little")
    assert formats(*ALL).pack(None, AT_MS) == bytes((3 | NULL_FLAG,)) + encode_stamp(AT_MS)
    assert formats(PLAIN).pack(None, AT_MS) == bytes((NULL_FLAG,))


@pytest.mark.parametrize("value", [7, None])
def test_values_of_every_earlier_format_are_read_and_only_stamps_of_this_clock_count(value: int | None) -> None:
    raws = [formats(*ALL[: number + 1]).pack(value, AT_MS) for number in range(4)]
    now = formats(*ALL, write=2)
    assert [now.unpack(raw) for raw in raws] == [(value, None), (value, None), (value, AT_MS), (value, None)]
    assert [now.value(raw) for raw in raws] == [value] * 4
    assert [now.stamp(raw) for raw in raws] == [None, None, AT_MS, None]
    assert now.unpack_array([*raws, None]).to_pylist() == [*[value] * 4, None]
    assert now.unpack_array(raws[2:3] * 2).to_pylist() == [value] * 2
    sizes = [4, 8, 8, 8] if value is not None else [None] * 4
    assert [None if (raw := now.payload(each)) is None else len(raw) for each in raws] == sizes


def test_a_new_stamp_is_written_in_the_current_format_and_keeps_the_value() -> None:
    now = formats(*ALL, write=2)
    for number in range(4):
        for value in (7, None):
            raw = now.restamped(formats(*ALL[: number + 1]).pack(value, AT_MS), AT_MS + 5)
            assert (raw, now.unpack(raw)) == (now.pack(value, AT_MS + 5), (value, AT_MS + 5))


def test_columns_are_stored_as_their_values_are() -> None:
    now, values = formats(*ALL, write=2), pa.array([7, None, -1], pa.int64())
    expected = [now.pack(value, AT_MS) for value in values.to_pylist()]
    assert now.pack_array(values, AT_MS) == expected
    assert now.pack_array(values.drop_null(), AT_MS) == [expected[0], expected[2]]
    stamps = np.array([AT_MS, AT_MS + 1, AT_MS + 2])
    assert now.pack_column(values, stamps).to_list() == [
        now.pack(value, at_ms) for value, at_ms in zip(values.to_pylist(), stamps.tolist(), strict=True)
    ]
    assert now.list_array([[1, 2], []]).to_pylist() == [[1, 2], []]


def test_fresh_values_are_those_with_this_stamp_or_a_later_one_in_the_current_format() -> None:
    now = formats(*ALL, write=2)
    first, end = now.stamped_from(AT_MS)
    found = [now.pack(7, at_ms) for at_ms in (AT_MS - 1, AT_MS, AT_MS + 1)]
    others = [formats(*ALL).pack(7, AT_MS + 1), formats(PLAIN).pack(7, 0), now.pack(None, AT_MS + 1)]
    assert [first <= raw < end for raw in [*found, *others]] == [False, True, True, False, False, False]
    first, end = now.stamped_from(STAMP_MAX_MS + 1)
    assert not first <= now.pack(7, STAMP_MAX_MS) < end


def test_stamps_up_to_a_bound_have_expired_in_the_formats_of_this_clock() -> None:
    now = formats(*ALL, write=2)
    check = now.expiry_check(AT_MS)
    assert [check(now.pack(value, at_ms)) for value in (7, None) for at_ms in (AT_MS, AT_MS + 1)] == [True, False] * 2
    assert not check(formats(*ALL).pack(7, AT_MS)), "of another clock"
    assert not check(formats(PLAIN).pack(7, AT_MS)), "without a stamp"
    assert not expiry_check({2}, STAMP_MIN_MS - 1)(now.pack(7, STAMP_MIN_MS))
    assert expiry_check({2}, STAMP_MIN_MS)(now.pack(7, STAMP_MIN_MS))


@pytest.mark.parametrize(
    "raw", [b"\4" + b"x" * 14, b"\2", b"\2" + b"x" * 5, b"\2" + b"x" * 6, b"\0\1\2\3", b"\0\1\2\3\4\5", b"\x3f"]
)
def test_bytes_that_are_no_stored_value_are_corrupt(raw: bytes) -> None:
    now = formats(*ALL, write=2)
    reads: list[Any] = [now.unpack, now.value, lambda raw: now.unpack_array([raw])]
    for read in reads:
        with pytest.raises(CorruptValueError):
            read(raw)


def test_a_time_beyond_a_stamp_becomes_the_nearest_one_and_stamps_are_in_the_order_of_time() -> None:
    times = [-(2**62), STAMP_MIN_MS, -1, 0, 1, STAMP_MAX_MS, 2**62]
    stamps = [encode_stamp(at_ms) for at_ms in times]
    assert stamps == sorted(stamps)
    assert [decode_stamp(raw) for raw in stamps] == [max(STAMP_MIN_MS, min(at_ms, STAMP_MAX_MS)) for at_ms in times]
    assert [row.tobytes() for row in encode_stamps(np.array(times))] == stamps
