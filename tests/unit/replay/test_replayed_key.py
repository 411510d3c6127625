"""The only key of a replay is found in the records of one input or of two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from keyscale.identifiers import OperatorUid
from keyscale.jobs.operators.two_inputs import PORT_COLUMN, struct_column
from keyscale.replay.errors import ReplayKeyError
from keyscale.replay.replayed_key import ReplayedKey
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_groups import assign_to_key_group

KEY_SCHEMA = pa.schema([("user", pa.string()), ("day", pa.int32())])
KEY = ReplayedKey(OperatorUid("counts"), ("ada", 1), 0)


def node(uid: str, *key_columns: str, second: tuple[str, ...] = ()) -> Any:
    other = SimpleNamespace(key_columns=second) if second else None
    return SimpleNamespace(uid=uid, key_columns=key_columns, second=other, key_schema=KEY_SCHEMA)


def test_the_records_of_an_input_with_the_whole_key_are_the_keys() -> None:
    users, days = ["ada", "ada", "bob", "ada"], [1, 2, 1, 1]
    batch = pa.record_batch({"day": days, "n": [1, 2, 3, 4], "user": users})
    assert KEY.rows(node("counts", "user", "day"), batch)["n"].to_pylist() == [1, 4]


def test_the_records_of_two_inputs_have_their_own_names_of_the_key() -> None:
    first = [{"user": "ada", "day": 1}, None, {"user": "ada", "day": 2}, None]
    second = [None, {"who": "ada", "on": 1}, None, {"who": "bob", "on": 1}]
    columns = {PORT_COLUMN: [0, 1, 0, 1], struct_column(0): first, struct_column(1): second, "n": [1, 2, 3, 4]}
    found = KEY.rows(node("counts", "user", "day", second=("who", "on")), pa.record_batch(columns))
    assert found["n"].to_pylist() == [1, 2]


@pytest.mark.parametrize("hash_id", HashId)
def test_a_key_is_read_with_the_operators_columns_and_the_jobs_key_groups(hash_id: HashId) -> None:
    topology: Any = SimpleNamespace(operators=[node("counts"), node("sums")])
    batch: Any = SimpleNamespace(before=SimpleNamespace(max_parallelism=64, hash_id=hash_id))
    found = ReplayedKey.of_text(topology, batch, '["ada", 1]', "sums")
    group = assign_to_key_group(("ada", 1), 64, hash_id=hash_id, types=(pa.string(), pa.int32()))
    assert found == ReplayedKey(OperatorUid("sums"), ("ada", 1), group)
    for uid, complaint in (("gone", "no operator 'gone'"), (None, "several operators")):
        with pytest.raises(ReplayKeyError, match=f"the job has {complaint}; its operators are: counts, sums"):
            ReplayedKey.of_text(topology, batch, '["ada", 1]', uid)
