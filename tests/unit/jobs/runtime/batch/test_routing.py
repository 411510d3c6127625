"""A row goes to the key group and the subtask that its state belongs to."""

from __future__ import annotations

import pyarrow as pa
import pytest

from keyscale.jobs.runtime.batch import routing
from keyscale.jobs.runtime.batch.routing import Routing
from keyscale.state.keys.hashing import HashId, hash_codes
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import assign_to_key_groups
from tests.support.spark import played_columns
from tests.support.spark.played_frame import frame_of

KEYS = [("a", 1), ("b", 2), ("", 3), ("c", -4), ("d", 2**31 - 1), *((f"key {at}", at) for at in range(12))]


@pytest.mark.parametrize("hash_id", list(HashId))
@pytest.mark.parametrize(
    "ranges",
    [KeyGroupRanges.of_count(8, 3), KeyGroupRanges.of_count(128, 1), KeyGroupRanges(8, (0, 1, 6))],
    ids=["by count", "one subtask", "by size"],
)
def test_rows_are_marked_with_the_group_and_the_owner_that_the_state_library_gives_their_keys(
    hash_id: HashId, ranges: KeyGroupRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "F", played_columns)
    rows = [{"na`me": name, "other": "x", "number": number} for name, number in KEYS]
    marked = Routing.of(("na`me", "number"), ranges=ranges, hash_id=hash_id).mark(frame_of(*rows)).rows
    names, numbers = zip(*KEYS, strict=True)
    codes = hash_codes([pa.array(names), pa.array(numbers, pa.int32())], hash_id)
    groups = assign_to_key_groups(codes, ranges.max_parallelism).tolist()
    assert marked == [
        {**row, "__key_group": group, "__subtask": ranges.subtask_of(group)}
        for row, group in zip(rows, groups, strict=True)
    ]
