"""Strategies for keys and values of every type that state can hold."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from("\0\1\2ab"), max_size=24)
UUID_TEXT = st.uuids().map(str)

SCALARS = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False).map(lambda x: x + 0.0),
    pa.float64(): st.floats(allow_nan=False).map(lambda x: x + 0.0),
    pa.string(): TEXT | UUID_TEXT | UUID_TEXT.map(str.upper),
    pa.binary(): st.binary(max_size=24),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ms", "UTC"): st.datetimes(timezones=st.just(dt.UTC)).map(lambda x: x.replace(microsecond=0)),
    pa.decimal128(12, 3): st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.uuid(): st.uuids(),
}


def typed(strategies):
    """Returns a strategy for pairs of a type and a strategy for its values."""
    return st.sampled_from([(of_type, each) for of_type, each in strategies.items()])


PARTS = {of_type: each for of_type, each in SCALARS.items() if of_type != pa.uuid()}  # Arrow nests no extension types
LISTS = {pa.list_(of_type): st.lists(st.none() | each, max_size=4) for of_type, each in PARTS.items()}
STRUCTS = {
    pa.struct([("left", a), ("right", b)]): st.fixed_dictionaries({"left": st.none() | of_a, "right": st.none() | of_b})
    for (a, of_a), (b, of_b) in pairwise(PARTS.items())
}
KEYS = {**SCALARS, **LISTS, **STRUCTS}
MAPS = {
    pa.map_(pa.string(), pa.int64()): st.dictionaries(TEXT, st.none() | SCALARS[pa.int64()], max_size=4),
    pa.map_(pa.int32(), pa.list_(pa.string())): st.dictionaries(
        SCALARS[pa.int32()], st.none() | st.lists(TEXT, max_size=3), max_size=3
    ),
}
VALUES = {**KEYS, **MAPS}
