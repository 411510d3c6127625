"""Manifests: published once, verified when read, and readable by later versions."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.checked_document import DocumentCorruptError, FormatTooNewError
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.manifest import (
    OPERATORS_MAX,
    UID_CHARACTERS_MAX,
    FileHandle,
    Manifest,
    ManifestTakenError,
    OperatorDeclaration,
    OperatorSnapshot,
    ShardHandle,
    SnapshotHandle,
    SnapshotKind,
    decode_manifest,
    distinct_bytes,
    encode_manifest,
    known_files,
    read_manifest,
    write_manifest,
)
from keyscale.state.documents.rewind import Rewind
from keyscale.state.keyed.schema import KeyedSchema
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import InvalidNameError, Layout, LocationError, location_of, path_segment, split_location
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.object_store import check_path
from tests.support.repository import GOLDEN
from tests.support.state.faulty_store import Fault, FaultyStore

if TYPE_CHECKING:
    from pathlib import Path

VECTORS_FILE = GOLDEN / "manifest-v1.json"


def example(created_at_ms: int = 1_700_000_000_000) -> Manifest:
    files = (
        FileHandle("000012.sst", "job/shared/aa-1", 1000, "aa", shared=True),
        FileHandle("CURRENT", "job/chk-7/count/0-u/0/CURRENT", 16, "bb"),
    )
    return Manifest(
        job_id=JobId("job"),
        checkpoint_id=CheckpointId(7),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(2),
        batch_id=BatchId(41),
        log_position=90,
        max_parallelism=128,
        hash_id=HashId.SPARK,
        created_at_ms=created_at_ms,
        operators=(
            OperatorSnapshot(
                uid=OperatorUid("count"),
                parallelism=1,
                declaration=OperatorDeclaration(
                    key_schema=(("id", "string"),),
                    schema=KeyedSchema((("id", "string"),)),
                ),
                subtasks=(
                    SnapshotHandle(SubtaskIndex(0), 0, 127, BatchId(41), "lineage", (ShardHandle(0, 127, files),)),
                ),
            ),
        ),
        positions=FileHandle("positions.json", "job/chk-7/positions-u.json", 2, "cc"),
        sinks={"out": "token"},
    )


def test_a_file_that_two_subtasks_read_counts_once_in_the_size_of_the_state() -> None:
    manifest = example()
    (operator,) = manifest.operators
    (subtask,) = operator.subtasks
    halves = (subtask, msgspec.structs.replace(subtask, subtask=SubtaskIndex(1)))
    rescaled = msgspec.structs.replace(operator, subtasks=halves)
    assert msgspec.structs.replace(manifest, operators=(rescaled,)).state_size_bytes == 1016
    assert distinct_bytes(halves) == [1016, 0]


def test_the_files_of_a_manifest_are_its_states_files_and_its_positions() -> None:
    state = ["job/shared/aa-1", "job/chk-7/count/0-u/0/CURRENT"]
    assert [file.path for file in example().files()] == [*state, "job/chk-7/positions-u.json"]
    assert [file.path for file in msgspec.structs.replace(example(), positions=None).files()] == state


@pytest.mark.parametrize(
    ("operators", "characters", "is_read"),
    [
        (1, UID_CHARACTERS_MAX, True),
        (1, UID_CHARACTERS_MAX + 1, False),
        (OPERATORS_MAX, 5, True),
        (OPERATORS_MAX + 1, 5, False),
    ],
)
def test_a_process_that_reads_the_manifests_of_others_accepts_only_so_many_operators_and_so_long_uids(
    tmp_path: Path, operators: int, characters: int, is_read: bool
) -> None:
    (operator,) = example().operators
    uids = [OperatorUid(f"{number:0{characters}d}") for number in range(operators)]
    found = [msgspec.structs.replace(operator, uid=uid, subtasks=()) for uid in uids]
    store = LocalObjectStore(tmp_path)
    store.put("manifest", encode_manifest(msgspec.structs.replace(example(), operators=tuple(found))))
    assert len(read_manifest(store, "manifest").operators) == operators
    limited = LocalObjectStore(tmp_path, get_bytes_max=1 << 30)
    with contextlib.nullcontext() if is_read else pytest.raises(DocumentCorruptError, match="operators"):
        read_manifest(limited, "manifest")


def test_todays_reader_reads_last_years_manifest() -> None:
    assert decode_manifest(VECTORS_FILE.read_bytes(), "golden") == example()


def test_a_jobs_counters_are_in_its_manifest() -> None:
    counted = msgspec.structs.replace(example(), counters=JobCounters(10, 6, 2, 1))
    data = encode_manifest(counted)
    expected = {"input_records": 10, "output_records": 6, "late_records": 2, "dead_letters": 1}
    assert json.loads(data)["body"]["counters"].items() >= expected.items()
    assert decode_manifest(data, "here") == counted


def test_the_rewinds_of_a_jobs_history_are_in_its_manifest_if_there_are_any() -> None:
    assert "rewinds" not in json.loads(encode_manifest(example()))["body"]
    gone_back = msgspec.structs.replace(example(), rewinds=(Rewind(Attempt(3), BatchId(-1)),))
    data = encode_manifest(gone_back)
    assert json.loads(data)["body"]["rewinds"] == [{"attempt": 3, "batch_id": -1}]
    assert decode_manifest(data, "here") == gone_back


def test_todays_writer_still_writes_every_field_that_last_years_reader_read() -> None:
    written, golden = (json.loads(document) for document in (encode_manifest(example()), VECTORS_FILE.read_bytes()))
    assert written["body"].items() >= golden["body"].items(), "fields may be added within a format, not changed"
    assert (written["keyscale"], written["format_version"]) == (golden["keyscale"], golden["format_version"])


def test_an_unknown_field_is_ignored_and_a_newer_format_refused() -> None:
    newer = VECTORS_FILE.read_bytes().replace(b'"format_version":1', b'"format_version":2')
    with pytest.raises(FormatTooNewError):
        decode_manifest(newer, "here")


@pytest.mark.parametrize("place", ['"body":', '"sha256":', '"keyscale":'])
def test_a_document_that_is_nested_too_deeply_is_damaged(place: str) -> None:
    good, deep = VECTORS_FILE.read_bytes(), b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(DocumentCorruptError):
        decode_manifest(good.replace(place.encode(), b'"more":%s,%s' % (deep, place.encode()), 1), "here")


@settings(deadline=None)
@given(st.data())
def test_any_changed_or_missing_byte_is_noticed(data: st.DataObject) -> None:
    good = VECTORS_FILE.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(changed), good[:at]):
        try:
            found = decode_manifest(bad, "here")
        except (DocumentCorruptError, FormatTooNewError):
            continue
        assert found == example(), "an accepted document is the one that was written"


def test_publishing_twice_is_harmless_and_another_manifest_is_refused(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    path = write_manifest(store, example())
    assert path == "job/chk-7/manifest.json"
    assert write_manifest(store, example()) == path
    with pytest.raises(ManifestTakenError):
        write_manifest(store, example(created_at_ms=1))
    assert read_manifest(store, path) == example()


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.NOT_APPLIED])
def test_a_lost_response_to_the_publication_is_resolved(tmp_path: Path, fault: Fault) -> None:
    store = FaultyStore(tmp_path, [fault])
    write_manifest(store, example())
    assert store.fired == 1
    assert read_manifest(store, example().path) == example()


def test_a_manifest_is_not_published_if_the_store_stays_unavailable(tmp_path: Path) -> None:
    store = FaultyStore(tmp_path)
    store.away = True
    with pytest.raises(StoreUnavailableError):
        write_manifest(store, example())


def test_only_the_jobs_own_shared_files_and_claimed_ones_need_no_upload() -> None:
    assert known_files([example()], JobId("job")) == {"aa": "job/shared/aa-1"}
    assert known_files([example()], JobId("other")) == {}
    assert known_files([example()], JobId("other"), claimed=True) == {"aa": "job/shared/aa-1"}


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_any_name_is_one_safe_segment_and_no_two_share_one(one: str, other: str) -> None:
    try:
        segments = path_segment(one), path_segment(other)
    except (InvalidNameError, UnicodeEncodeError):
        return
    assert check_path(segments[0]) == segments[0]
    assert "/" not in segments[0]
    assert (segments[0] == segments[1]) == (one == other)


@pytest.mark.parametrize("savepoint_id", [None, "before/upgrade .."])
@pytest.mark.parametrize("root", ["s3://bucket", "s3://bucket/a/b", "file:///srv/keyscale%20store"])
def test_a_location_gives_back_its_store_and_manifest(root: str, savepoint_id: str | None) -> None:
    path = Layout(JobId("my job")).manifest(CheckpointId(3), savepoint_id)
    assert split_location(location_of(root, path)) == (root, path)


@pytest.mark.parametrize(
    "location",
    ["", "manifest.json", "s3://bucket/manifest.json", "s3://b/j/chk-x/manifest.json", "/j/chk-1/manifest.json"],
)
def test_other_locations_are_refused(location: str) -> None:
    with pytest.raises(LocationError):
        split_location(location)
