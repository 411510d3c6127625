"""Key groups by the java hash are equal to Flink's: vectors printed by Flink 2.3 (see FlinkKeyGroupVectors.java)."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pyarrow as pa
import pytest

from keyscale.jobs.protocol.specification import default_max_parallelism
from keyscale.state.keys.hashing import HashId, hash_codes
from keyscale.state.keys.key_groups import (
    assign_to_key_group,
    assign_to_key_groups,
    key_group_range,
    subtask_for_key_group,
)
from tests.support.repository import GOLDEN

VECTORS = json.loads((GOLDEN / "flink-key-groups-v1.json").read_text())
TYPES = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "bool": pa.bool_(), "double": pa.float64()}


def keys_of(name: str) -> list[tuple[Any, int, int]]:
    def value(json_value: Any) -> Any:
        if name == "double":
            return struct.unpack(">d", int(json_value, 16).to_bytes(8, "big"))[0]
        if name == "string":  # an astral character is written as two escapes
            return json_value.encode("utf-16", "surrogatepass").decode("utf-16")
        return json_value

    keys = [(value(v["key"]), v["max_parallelism"], v["key_group"]) for v in VECTORS if v.get("type") == name]
    return [each for each in keys if not is_negative_zero(each[0])]


def is_negative_zero(key: Any) -> bool:
    """Whether a key is -0.0: in Flink another key than 0.0, here the same one."""
    return isinstance(key, float) and key == 0 and math.copysign(1, key) < 0


@pytest.mark.parametrize("name", TYPES)
def test_a_key_has_the_same_key_group_as_in_flink(name: str) -> None:
    vectors = keys_of(name)
    assert vectors
    found = [
        assign_to_key_group(key, max_parallelism, hash_id=HashId.JAVA, types=(TYPES[name],))
        for key, max_parallelism, _ in vectors
    ]
    assert found == [key_group for _, _, key_group in vectors]


@pytest.mark.parametrize("name", TYPES)
def test_columns_of_keys_have_the_same_key_groups_as_in_flink(name: str) -> None:
    vectors = keys_of(name)
    codes = hash_codes([pa.array([key for key, _, _ in vectors], TYPES[name])], HashId.JAVA)
    found = [
        int(assign_to_key_groups(codes[row : row + 1], max_parallelism)[0])
        for row, (_, max_parallelism, _) in enumerate(vectors)
    ]
    assert found == [key_group for _, _, key_group in vectors]


def test_a_subtask_owns_the_same_range_as_in_flink() -> None:
    ranges = [(v["range"], v["owner"]) for v in VECTORS if "range" in v]
    assert ranges
    for (max_parallelism, parallelism, index, start, end), (key_group, owner) in ranges:
        owned = key_group_range(max_parallelism, parallelism, index)
        assert (owned.start, owned.end) == (start, end)
        assert subtask_for_key_group(key_group, max_parallelism, parallelism) == owner


def test_the_default_max_parallelism_is_flinks() -> None:
    defaults = [v["default_max_parallelism"] for v in VECTORS if "default_max_parallelism" in v]
    assert {p: default_max_parallelism(p) for p, _ in defaults} == dict(defaults)
