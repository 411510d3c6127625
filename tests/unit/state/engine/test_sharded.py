"""Several shards are one engine: each call reaches the shards that it concerns, and only those."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from keyscale.state.engine.engine import Mutation, SortedRun
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.sharded import ShardedEngine
from keyscale.state.errors import KeyGroupError
from keyscale.state.keys.key_groups import KeyGroupRange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANGES = [KeyGroupRange(2, 4), KeyGroupRange(5, 5), KeyGroupRange(8, 11)]
OWNED = [2, 3, 4, 5, 8, 9, 10, 11]
FOREIGN = [0, 1, 6, 7, 12, 300]


def key(group: int, rest: bytes = b"") -> bytes:
    return group.to_bytes(2, "big") + rest


class NotingEngine(HeapEngine):
    """Notes the calls that change or close it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.busy = self.damaged = self.fails = False
        self.bytes = 0

    def write(self, mutations: list[Mutation]) -> None:
        self.calls.append("write")
        super().write(mutations)

    def write_runs(self, runs: list[SortedRun]) -> None:
        self.calls.append("write_runs")
        super().write_runs(runs)

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self.calls.append(f"scan {limit}")
        return super().scan(family, start, end, limit)

    def ingest(self, family: str, files: list[Path]) -> None:
        noted = [*self.calls, f"ingest {family} {len(files)}"]
        super().ingest(family, files)  # which writes runs
        self.calls = noted

    def flush(self) -> None:
        self.calls.append("flush")

    def begin_flush(self) -> None:
        self.calls.append("begin_flush")

    def compact(self, family: str | None = None) -> None:
        self.calls.append(f"compact {family}")

    def checkpoint(self, directory: Path) -> None:
        directory.mkdir()

    def is_busy(self) -> bool:
        return self.busy

    @property
    def found_damage(self) -> bool:
        return self.damaged

    def size_bytes(self) -> int:
        return self.bytes

    def close(self) -> None:
        self.calls.append("close")
        super().close()
        if self.fails:
            raise OSError(self.bytes)


@pytest.fixture
def shards() -> list[NotingEngine]:
    return [NotingEngine() for _ in RANGES]


@pytest.fixture
def engine(shards: list[NotingEngine]) -> ShardedEngine:
    # In any order.
    return ShardedEngine([(RANGES[number], shards[number]) for number in (1, 2, 0)])


def filled(engine: ShardedEngine) -> dict[bytes, bytes]:
    entries = {key(group, bytes((n,))): b"%d-%d" % (group, n) for group in OWNED for n in range(3)}
    engine.write([Mutation("s", each, value) for each, value in entries.items()])
    return entries


def calls(shards: list[NotingEngine]) -> list[list[str]]:
    """Returns the calls since the last time."""
    noted = [shard.calls.copy() for shard in shards]
    for shard in shards:
        shard.calls.clear()
    return noted


def test_many_keys_are_read_in_any_order_and_those_of_no_shard_are_absent(engine: ShardedEngine) -> None:
    entries = filled(engine)
    wanted = [*entries, *(key(group, b"\0") for group in FOREIGN), key(4, b"none"), key(2, b"\0")]
    for seed in range(20):
        random.Random(seed).shuffle(wanted)
        for keys in (wanted, wanted[: seed % 7], sorted(wanted)):
            assert engine.get_many("s", keys) == [entries.get(each) for each in keys]
    assert [engine.get("s", each) for each in wanted] == [entries.get(each) for each in wanted]
    assert engine.get("t", wanted[0]) is None


@pytest.mark.parametrize("limit", [None, 1, 2, 8, 9, 10, 12, 13, 24, 25])
@pytest.mark.parametrize(
    ("start", "end"),
    [(b"", None), (key(0), key(400)), (key(3), key(9)), (key(5), key(6)), (key(6), key(8)), (key(4, b"\1"), None)],
)
def test_a_scan_goes_through_the_shards_up_to_its_limit(
    engine: ShardedEngine, start: bytes, end: bytes | None, limit: int | None
) -> None:
    entries = sorted(filled(engine).items())
    within = [(each, value) for each, value in entries if start <= each and (end is None or each < end)]
    assert list(engine.scan("s", start, end, limit)) == within[:limit]


def test_a_scan_asks_each_shard_for_no_more_than_is_left_and_none_that_it_does_not_touch(
    engine: ShardedEngine, shards: list[NotingEngine]
) -> None:
    filled(engine)
    calls(shards)
    list(engine.scan("s", b"", None, 10))
    assert calls(shards) == [["scan 10"], ["scan 1"], []]
    list(engine.scan("s", key(5), key(8), None))
    assert calls(shards) == [[], ["scan None"], []]
    list(engine.scan("s", b"", None, 9))
    assert calls(shards) == [["scan 9"], [], []]


def test_the_last_key_is_that_of_the_last_shard_that_has_one(engine: ShardedEngine) -> None:
    entries = filled(engine)
    for start in (0, 3, 5, 8):
        for end in (5, 6, 8, 10, 400):
            within = [each for each in entries if key(start) <= each < key(end)]
            assert engine.last_key("s", key(start), key(end)) == (max(within) if within else None)
    engine.delete_range(key(8), None)
    assert engine.last_key("s", b"", key(400)) == key(5, b"\2")


def test_a_single_shard_answers_for_all(tmp_path: Path) -> None:
    engine = ShardedEngine([(KeyGroupRange(2, 4), NotingEngine())])
    engine.write([Mutation("s", key(2), b"a"), Mutation("t", key(2), b"of t"), Mutation("s", key(4), b"c")])
    engine.write_runs([SortedRun("s", [key(3)], [b"b"])])
    run = SortedRun("s", [key(3, b"x"), key(4, b"x")], [b"bx", b"cx"])
    assert engine.split(run) == [run]
    engine.write_sorted_file(run, tmp_path / "file")
    engine.ingest("s", [tmp_path / "file"])
    entries = {key(2): b"a", key(3): b"b", key(3, b"x"): b"bx", key(4): b"c", key(4, b"x"): b"cx"}
    assert list(engine.scan("s", b"", None)) == list(entries.items())
    assert list(engine.scan("s", key(3), key(4, b"x"), 2)) == list(entries.items())[1:3]
    assert [engine.get("s", each) for each in entries] == list(entries.values())
    assert engine.get_many("s", [key(4), key(2), key(3, b"y")]) == [b"c", b"a", None]
    assert engine.get_many("t", [key(2)]) == [engine.get("t", key(2))] == [b"of t"]
    assert engine.last_key("s", key(2), key(4)) == key(3, b"x")


def test_a_write_reaches_the_shards_of_its_keys_in_one_call_each(
    engine: ShardedEngine, shards: list[NotingEngine]
) -> None:
    engine.write([Mutation("s", key(group), b"x") for group in (2, 11, 3, 8)])
    assert calls(shards) == [["write"], [], ["write"]]
    runs = [SortedRun(family, [key(4), key(5), key(9)], [b"1", b"2", b"3"]) for family in ("s", "t")]
    engine.write_runs(runs)
    assert calls(shards) == [["write_runs"], ["write_runs"], ["write_runs"]]
    assert engine.get_many("t", [key(4), key(5), key(9)]) == [b"1", b"2", b"3"]
    assert engine.families() == ["s", "t"]


@pytest.mark.parametrize("group", FOREIGN)
def test_a_key_of_no_shard_is_named_and_nothing_is_written(
    engine: ShardedEngine, shards: list[NotingEngine], group: int
) -> None:
    run = SortedRun("s", sorted([key(2), key(group)]), [b"x", b"x"])
    for refused in (
        lambda: engine.write([Mutation("s", key(2), b"x"), Mutation("s", key(group), b"x")]),
        lambda: engine.write_runs([run]),
        lambda: engine.split(run),
    ):
        with pytest.raises(KeyGroupError, match=f"key group {group} has no shard$"):
            refused()
    assert calls(shards) == [[], [], []]


def test_a_run_is_split_at_the_bounds_of_the_shards(engine: ShardedEngine) -> None:
    keys = [key(2), key(4, b"\xff"), key(5), key(8), key(11, b"\xff")]
    values = [b"a", b"b", b"c", None, b"e"]
    parts = engine.split(SortedRun("s", keys, values))
    assert [(part.family, part.keys, part.values) for part in parts] == [
        ("s", keys[:2], values[:2]),
        ("s", keys[2:3], values[2:3]),
        ("s", keys[3:], values[3:]),
    ]


def test_a_sorted_file_of_one_shard_is_ingested_there_alone(
    engine: ShardedEngine, shards: list[NotingEngine], tmp_path: Path
) -> None:
    files = [tmp_path / str(number) for number in range(2)]
    for group, file in zip((8, 11), files, strict=True):
        engine.write_sorted_file(SortedRun("s", [key(group)], [b"new"]), file)
    engine.ingest("s", files)
    assert calls(shards) == [[], [], ["ingest s 2"]]
    assert engine.get_many("s", [key(8), key(11)]) == [b"new", b"new"]


def test_any_other_file_is_ingested_everywhere_and_clipped_to_each_shard(
    engine: ShardedEngine, shards: list[NotingEngine], tmp_path: Path
) -> None:
    engine.write([Mutation("t", key(group), b"kept") for group in OWNED])
    calls(shards)
    file = tmp_path / "file"
    HeapEngine().write_sorted_file(SortedRun("s", [key(group) for group in range(13)], [b"new"] * 13), file)
    engine.ingest("s", [file])
    assert calls(shards) == [["ingest s 1"]] * 3
    for owned, shard in zip(RANGES, shards, strict=True):
        groups = list(range(owned.start, owned.end + 1))
        assert [each for each, _ in shard.scan("s", b"", None)] == [key(group) for group in groups]
        assert [value for _, value in shard.scan("t", b"", None)] == [b"kept"] * len(groups)


def test_a_file_that_spans_shards_is_clipped_although_this_engine_wrote_it(
    engine: ShardedEngine, shards: list[NotingEngine], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    engine.write_sorted_file(SortedRun("s", [key(4), key(5)], [b"4", b"5"]), file)
    engine.ingest("s", [file])
    assert [[each for each, _ in shard.scan("s", b"", None)] for shard in shards] == [[key(4)], [key(5)], []]


def test_files_of_two_shards_are_ingested_everywhere(
    engine: ShardedEngine, shards: list[NotingEngine], tmp_path: Path
) -> None:
    files = [tmp_path / str(number) for number in range(2)]
    for group, file in zip((2, 5), files, strict=True):
        engine.write_sorted_file(SortedRun("s", [key(group)], [b"new"]), file)
    engine.ingest("s", files)
    assert [[each for each, _ in shard.scan("s", b"", None)] for shard in shards] == [[key(2)], [key(5)], []]


def test_what_concerns_all_shards_reaches_all(
    engine: ShardedEngine, shards: list[NotingEngine], tmp_path: Path
) -> None:
    engine.begin_flush()
    engine.flush()
    engine.compact("s")
    assert calls(shards) == [["begin_flush", "flush", "compact s"]] * 3
    engine.checkpoint(tmp_path / "of all")
    assert [path.name for path in tmp_path.iterdir()] == ["of all"]
    assert {path.name for path in (tmp_path / "of all").iterdir()} == {"2-4", "5-5", "8-11"}


def test_one_shard_is_enough_to_be_busy_or_damaged_and_sizes_add_up(
    engine: ShardedEngine, shards: list[NotingEngine]
) -> None:
    assert not engine.is_busy()
    assert not engine.found_damage
    shards[1].busy = shards[2].damaged = True
    assert engine.is_busy()
    assert engine.found_damage
    for number, shard in enumerate(shards):
        shard.bytes = 10**number
    assert engine.size_bytes() == 111


def test_all_shards_are_closed_although_one_fails_and_the_first_failure_is_raised(
    engine: ShardedEngine, shards: list[NotingEngine]
) -> None:
    for number in (1, 2):
        shards[number].fails, shards[number].bytes = True, number
    with pytest.raises(OSError, match=r"^1$"):
        engine.close()
    assert calls(shards) == [["close"]] * 3


def test_shards_must_be_there_and_share_no_key_group() -> None:
    with pytest.raises(KeyGroupError, match="at least one"):
        ShardedEngine([])
    with pytest.raises(KeyGroupError, match="share key group 5"):
        ShardedEngine([(KeyGroupRange(5, 9), HeapEngine()), (KeyGroupRange(0, 5), HeapEngine())])
