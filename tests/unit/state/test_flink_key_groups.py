"""Key groups in the java form are Flink's own: vectors that Flink 2.3 printed (see FlinkKeyGroupVectors.java)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from state.hashing import HashId, hash_codes
from state.key_groups import (
    assign_to_key_group,
    assign_to_key_groups,
    default_max_parallelism,
    key_group_range,
    subtask_for_key_group,
)

VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "flink-key-groups-v1.json").read_text())
TYPES = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "bool": pa.bool_(), "double": pa.float64()}


def keys_of(name: str) -> list[tuple[Any, int, int]]:
    def value(json_value: Any) -> Any:
        if name == "double":
            return struct.unpack(">d", int(json_value, 16).to_bytes(8, "big"))[0]
        if name == "string":  # halves of an astral character come as two escapes
            return json_value.encode("utf-16", "surrogatepass").decode("utf-16")
        return json_value

    return [(value(v["key"]), v["max_parallelism"], v["key_group"]) for v in VECTORS if v.get("type") == name]


@pytest.mark.parametrize("name", TYPES)
def test_a_key_is_in_the_key_group_that_flink_puts_it_in(name: str) -> None:
    vectors = keys_of(name)
    assert vectors
    found = [
        assign_to_key_group(key, max_parallelism, hash_id=HashId.JAVA, types=(TYPES[name],))
        for key, max_parallelism, _ in vectors
    ]
    assert found == [key_group for _, _, key_group in vectors]


@pytest.mark.parametrize("name", TYPES)
def test_columns_of_keys_are_in_the_key_groups_that_flink_puts_them_in(name: str) -> None:
    vectors = keys_of(name)
    codes = hash_codes([pa.array([key for key, _, _ in vectors], TYPES[name])], HashId.JAVA)
    found = [
        int(assign_to_key_groups(codes[row : row + 1], max_parallelism)[0])
        for row, (_, max_parallelism, _) in enumerate(vectors)
    ]
    assert found == [key_group for _, _, key_group in vectors]


def test_a_subtask_owns_the_range_that_flink_gives_it() -> None:
    ranges = [(v["range"], v["owner"]) for v in VECTORS if "range" in v]
    assert ranges
    for (max_parallelism, parallelism, index, start, end), (key_group, owner) in ranges:
        owned = key_group_range(max_parallelism, parallelism, index)
        assert (owned.start, owned.end) == (start, end)
        assert subtask_for_key_group(key_group, max_parallelism, parallelism) == owner


def test_the_default_max_parallelism_is_flinks() -> None:
    defaults = [v["default_max_parallelism"] for v in VECTORS if "default_max_parallelism" in v]
    assert {p: default_max_parallelism(p) for p, _ in defaults} == dict(defaults)
