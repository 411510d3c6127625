"""Changelog files: written mutations come back, clipped to the given range, or the file is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.identifiers import BatchId, SubtaskIndex
from keyscale.state.documents.changelog import (
    ChangelogCorruptError,
    ChangelogFormat,
    ChangelogHandle,
    SortedFile,
    clip_runs,
    decode_changelog,
    encode_changelog,
    read_changelog,
    write_changelog,
)
from keyscale.state.documents.checked_document import FormatTooNewError
from keyscale.state.documents.manifest import FileHandle
from keyscale.state.engine.engine import SortedRun
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.repository import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

VECTORS_FILE = GOLDEN / "changelog-v1.bin"
GOLDEN_RUNS = [
    SortedRun("count", [b"\x00\x05a", b"\x00\x07b"], [b"1", None]),
    SortedRun("empty value", [b"\x00\x05a"], [b""]),
]
VALUES = st.none() | st.binary(max_size=6)
ENTRIES = st.dictionaries(st.tuples(st.integers(0, 300), st.binary(max_size=4)), VALUES, max_size=30)


def run(family: str, entries: dict[tuple[int, bytes], bytes | None]) -> SortedRun:
    stored = sorted((group.to_bytes(2, "big") + key, value) for (group, key), value in entries.items())
    return SortedRun(family, [key for key, _ in stored], [value for _, value in stored])


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), ENTRIES, max_size=3))
def test_every_mutation_comes_back(families: dict[str, dict[tuple[int, bytes], bytes | None]]) -> None:
    runs = [run(family, entries) for family, entries in families.items()]
    assert decode_changelog(encode_changelog(runs), "here") == runs


@settings(deadline=None)
@given(ENTRIES, st.integers(0, 300), st.integers(0, 300))
def test_clipping_keeps_exactly_the_keys_of_the_range(
    entries: dict[tuple[int, bytes], bytes | None], one: int, other: int
) -> None:
    start, end = sorted((one, other))
    expected = run("f", {key: value for key, value in entries.items() if start <= key[0] <= end})
    assert clip_runs([run("f", entries)], KeyGroupRange(start, end)) == ([expected] if len(expected) else [])


@settings(deadline=None)
@given(st.data())
def test_any_flipped_or_missing_byte_is_noticed(data: st.DataObject) -> None:
    good = encode_changelog([run("f", {(1, b"a"): b"1", (2, b"b"): None})])
    at = data.draw(st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(flipped), good[:at]):
        with pytest.raises((ChangelogCorruptError, FormatTooNewError)):
            decode_changelog(bad, "here")


def test_a_changelog_is_read_by_its_handle_and_refused_if_it_was_replaced(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    runs = [run("f", {(5, b"a"): b"1"})]
    identity = {"batch_id": BatchId(7), "subtask": SubtaskIndex(1), "key_groups": KeyGroupRange(4, 9)}
    handle = write_changelog(store, "path", runs, **identity)
    assert (handle.mutations, handle.batch_id, handle.subtask, handle.key_groups) == (1, 7, 1, KeyGroupRange(4, 9))
    assert msgspec.json.decode(msgspec.json.encode(handle), type=type(handle)) == handle
    assert read_changelog(store, handle) == runs
    write_changelog(store, "path", [run("f", {(5, b"a"): b"2"})], **identity)
    with pytest.raises(ObjectCorruptError):
        read_changelog(store, handle)


def test_a_handle_names_all_objects_of_its_changelog() -> None:
    files = tuple(SortedFile(family, f"path of {family}", 1, f"hash of {family}", 1) for family in ("a", "b"))
    state = FileHandle("state", "path of the state", 1, "hash of the state")
    place = (ChangelogFormat.FRAMES, BatchId(7), SubtaskIndex(1), 4, 9)
    handle = ChangelogHandle("path", 1, "hash", *place, mutations=3, sorted_files=files, operator_state=state)
    assert handle.paths() == ["path", "path of a", "path of b", "path of the state"]
    assert handle.key_groups == KeyGroupRange(4, 9)
    assert ChangelogHandle("path", 1, "hash", *place, mutations=0).paths() == ["path"]


def test_a_newer_format_is_refused_by_name() -> None:
    data = bytearray(encode_changelog([]))
    data[4] = 99
    with pytest.raises(FormatTooNewError):
        decode_changelog(bytes(data), "here")


def test_todays_reader_reads_last_years_changelog() -> None:
    assert decode_changelog(VECTORS_FILE.read_bytes(), "golden") == GOLDEN_RUNS
