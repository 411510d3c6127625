"""A shard that is taken over keeps exactly the key groups that its new subtask owns."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from keyscale.state.documents.manifest import ShardHandle
from keyscale.state.engine.engine import Mutation
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.restore.plan import ShardAssignment
from keyscale.state.restore.rebuild import clip

WHOLE = KeyGroupRange(3, 7)


@pytest.mark.parametrize("own", [KeyGroupRange(*ends) for ends in combinations_with_replacement(WHOLE, 2)], ids=str)
def test_every_key_group_outside_the_range_is_removed_and_none_inside_it(own: KeyGroupRange) -> None:
    engine = HeapEngine()
    ends = [b"", b"\x00", b"\xff" * 9]  # the first and the last keys of a key group
    stored = {family: [group.to_bytes(2, "big") + end for group in WHOLE for end in ends] for family in ("a", "b")}
    engine.write([Mutation(family, key, b"v") for family, keys in stored.items() for key in keys])
    clip(engine, ShardAssignment(ShardHandle(WHOLE.start, WHOLE.end, ()), own))
    for family, keys in stored.items():
        left = [key for key, _ in engine.scan(family, b"", None)]
        assert left == [key for key in keys if int.from_bytes(key[:2], "big") in own]
