"""Which runs of a batch are files, what a batch may change at most, and the handle of its changelog."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import BatchId, SubtaskIndex
from keyscale.state.documents.changelog import (
    ChangelogFormat,
    ChangelogHandle,
    SortedFile,
    encode_changelog,
    write_changelog,
)
from keyscale.state.documents.manifest import FileHandle
from keyscale.state.engine.engine import SortedRun
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.engine.sharded import ShardedEngine
from keyscale.state.errors import BatchTooLargeError
from keyscale.state.keyed.schema import KeyedSchema
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.local.file_index import hash_file
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.subtask import batch_files
from keyscale.state.subtask.batch_files import SplitRuns, check_size, spill_runs, split_runs

if TYPE_CHECKING:
    from pathlib import Path

SMALL = SortedRun("small", [b"\0\1a"], [b"1"])
LONG = SortedRun("long", [b"\0\1a", b"\0\1b", b"\0\5c"], [b"1", None, b"3"])
BIG = SortedRun("big", [b"\0\5a"], [b"x" * 100])


@pytest.fixture
def engine() -> ShardedEngine:
    return ShardedEngine([(KeyGroupRange(0, 3), HeapEngine()), (KeyGroupRange(4, 7), HeapEngine())])


@pytest.mark.parametrize(
    ("mutations_min", "framed", "files"),
    [
        (None, ["small", "long"], [("big", 1)]),
        (4, ["small", "long"], [("big", 1)]),
        (3, ["small"], [("long", 2), ("long", 1), ("big", 1)]),
        (0, [], [("small", 1), ("long", 2), ("long", 1), ("big", 1)]),
    ],
)
def test_a_run_with_many_mutations_or_bytes_is_a_file_for_each_shard(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: ShardedEngine,
    *,
    mutations_min: int | None,
    framed: list[str],
    files: list[tuple[str, int]],
) -> None:
    monkeypatch.setattr(batch_files, "SORTED_FILE_BYTES_MIN", BIG.size_bytes())
    split = split_runs([SMALL, LONG, BIG], engine, tmp_path, mutations_min)
    assert [run.family for run in split.framed] == framed
    assert split.framed_bytes == sum(run.size_bytes() for run in split.framed)
    assert [(run.family, len(run)) for run, _ in split.files] == files
    assert len({file for _, file in split.files}) == len(files)
    for run, file in split.files:
        engine.ingest(run.family, [file])
    assert list(engine.scan("big", b"", None)) == [(b"\0\5a", b"x" * 100)]


def test_a_batch_may_change_as_many_bytes_as_allowed_in_runs_files_and_spills(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 20)
    split = SplitRuns([SMALL], 5, [(LONG, tmp_path / "file")])
    spilled = [SortedFile("s", "path", 300, "sha", 1), SortedFile("s", "path", 4_000, "sha", 1)]
    check_size(split, spilled, 4_325)
    with pytest.raises(BatchTooLargeError, match="changed 4325 bytes of state; 4324 are allowed"):
        check_size(split, spilled, 4_324)


def test_spilled_runs_are_stored_in_their_order_and_applied(tmp_path: Path, engine: ShardedEngine) -> None:
    store, scratch = LocalObjectStore(tmp_path / "store"), tmp_path / "scratch"
    scratch.mkdir()
    spilled = spill_runs([LONG, BIG], engine, store, "job/changelog/count/x", scratch)
    assert [(file.family, file.path, file.mutations) for file in spilled] == [
        ("long", "job/changelog/count/x.0.sst", 2),
        ("long", "job/changelog/count/x.1.sst", 1),
        ("big", "job/changelog/count/x.2.sst", 1),
    ]
    for file in spilled:
        data = store.get(file.path)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size_bytes, file.sha256)
    assert list(engine.scan("long", b"", None)) == [(b"\0\1a", b"1"), (b"\0\5c", b"3")]
    assert list(scratch.iterdir()) == []


class Copies:
    """Notes which objects are kept on this host."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str]] = []

    def put(self, path: str, data: bytes) -> None:
        del data
        self.kept.append(("put", path))

    def upload(self, source: Path, path: str) -> None:
        self.kept.append((source.name, path))

    def give_up(self) -> None:
        self.kept.append(("give up", ""))


@pytest.mark.parametrize("has_spilled", [False, True])
def test_a_changelogs_handle_names_all_that_the_batch_has_changed(tmp_path: Path, *, has_spilled: bool) -> None:
    store, copies = LocalObjectStore(tmp_path / "store"), Copies()
    files = [(LONG, tmp_path / "long"), (BIG, tmp_path / "big")]
    for run, file in files:
        file.write_bytes(run.family.encode())
    spilled = [SortedFile("s", "job/spilled", 7, "sha", 40)] if has_spilled else []
    state, schema = FileHandle("operator-state", "job/state", 3, "sha"), KeyedSchema((("id", "int64"),))
    handle = write_changelog(
        store,
        "job/log",
        [SMALL],
        batch_id=BatchId(9),
        subtask=SubtaskIndex(1),
        key_groups=KeyGroupRange(0, 7),
        schema=schema,
        files=files,
        spilled=spilled,
        operator_state=state,
        copies=copies,
    )
    data = encode_changelog([SMALL])
    uploaded = [
        SortedFile(run.family, f"job/log.{number}.sst", len(run.family), hash_file(file), len(run))
        for number, (run, file) in enumerate(files)
    ]
    assert handle == ChangelogHandle(
        path="job/log",
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format=ChangelogFormat.FRAMES,
        batch_id=BatchId(9),
        subtask=SubtaskIndex(1),
        key_group_start=0,
        key_group_end=7,
        mutations=1 + 3 + 1 + (40 if has_spilled else 0),
        schema=schema,
        sorted_files=(*spilled, *uploaded),
        operator_state=state,
    )
    assert {info.path: store.get(info.path) for info in store.list("")} == {
        "job/log": data,
        "job/log.0.sst": b"long",
        "job/log.1.sst": b"big",
    }
    assert copies.kept == [
        ("put", "job/log"),
        ("long", "job/log.0.sst"),
        ("big", "job/log.1.sst"),
        *([("give up", "")] if has_spilled else []),
    ]
