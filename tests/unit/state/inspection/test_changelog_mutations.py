"""The mutations in changelogs, framed or in sorted files, and a key's changes in a job's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.changelog import ChangelogHandle, write_changelog
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, LogEntry
from keyscale.state.engine.engine import Mutation, SortedRun
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.inspection.changelog_mutations import changelog_mutations
from keyscale.state.inspection.key_changes import KeyChange, key_changes
from keyscale.state.inspection.state_point import ForeignStateError
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path

JOB, UID = JobId("job"), OperatorUid("count")
LAYOUT = Layout(JOB)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "store")


def key(group: int, name: bytes = b"k") -> bytes:
    return group.to_bytes(2, "big") + name


def changelog(
    store: LocalObjectStore, batch_id: int, *runs: SortedRun, name: str | None = None, own: tuple[int, int] = (0, 7)
) -> ChangelogHandle:
    return write_changelog(
        store,
        name or f"job/changelog/count/{batch_id}",
        runs,
        batch_id=BatchId(batch_id),
        subtask=SubtaskIndex(0),
        key_groups=KeyGroupRange(*own),
    )


def test_mutations_of_framed_runs_and_of_sorted_files_are_read_within_the_ranges(
    store: LocalObjectStore, tmp_path: Path
) -> None:
    framed = SortedRun("framed", [key(1), key(2), key(3)], [b"one", None, b"three"])
    large = SortedRun("large", [key(group) for group in range(6)], [b"zero", None, None, b"three", b"four", b"five"])
    engine = RocksDbEngine(tmp_path / "engine")
    engine.write_sorted_file(large, tmp_path / "file.sst")
    engine.close()
    handle = write_changelog(
        store,
        "job/changelog/count/4",
        [framed],
        batch_id=BatchId(4),
        subtask=SubtaskIndex(0),
        key_groups=KeyGroupRange(0, 7),
        files=[(large, tmp_path / "file.sst")],
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    known = [("large", key(1)), ("large", key(7)), ("framed", key(2)), ("large", key(4))]

    def mutations(ranges: dict[str, tuple[bytes, bytes | None]] | None) -> list[Mutation]:
        return list(changelog_mutations(store, handle, known=known, scratch=scratch, ranges=ranges))

    of_framed = [Mutation("framed", key(1), b"one"), Mutation("framed", key(2), None)]
    of_large = [Mutation("large", key(0), b"zero"), Mutation("large", key(3), b"three")]
    rest = [Mutation("large", key(4), b"four"), Mutation("large", key(5), b"five")]
    removed = Mutation("large", key(1), None)
    assert mutations(None) == [*of_framed, Mutation("framed", key(3), b"three"), *of_large, *rest, removed]
    assert mutations({"framed": (key(1), key(3))}) == of_framed
    assert mutations({"framed": (key(3), None)}) == [Mutation("framed", key(3), b"three")]
    assert mutations({"large": (key(4), key(5)), "other": (b"", None)})[:1] == rest[:1]
    assert list(scratch.iterdir()) == [], "temporary stores are removed"


def changes(store: LocalObjectStore, tmp_path: Path) -> list[KeyChange]:
    ranges = {"a": (key(3, b"k"), key(3, b"l")), "b": (key(3, b"k"), key(3, b"l"))}
    return list(key_changes(store, JOB, UID, key_group=3, ranges=ranges, scratch=tmp_path))


def committed(batch_id: int, *handles: ChangelogHandle | None, attempt: int = 1) -> BatchCommitted:
    return BatchCommitted(
        Attempt(attempt), BatchId(batch_id), {UID: list(handles), OperatorUid("no"): []}, {}, 100 + batch_id
    )


def opened(attempt: int, *, rewinds: bool = False) -> AttemptOpened:
    return AttemptOpened(Attempt(attempt), 1, 8, HashId.SPARK, None, 0, {}, rewinds)


def test_a_keys_changes_are_in_the_changelogs_of_its_key_group_since_the_last_rewind(
    store: LocalObjectStore, tmp_path: Path
) -> None:
    def run(batch_id: int) -> list[SortedRun]:
        return [
            SortedRun("a", [key(3, b"k1"), key(3, b"m"), key(4)], [b"%d" % batch_id, b"other key", b"other group"]),
            SortedRun("b", [key(3, b"k2")], [None]),
            SortedRun("c", [key(3, b"k1")], [b"other state"]),
        ]

    before = changelog(store, 0, *run(0))
    elsewhere = changelog(store, 1, *run(1), name="job/changelog/count/elsewhere", own=(4, 7))
    gone = changelog(store, 2, *run(2))
    entries: list[LogEntry] = [
        opened(1),
        committed(0, before),
        opened(2, rewinds=True),
        committed(1, changelog(store, 1, *run(1), own=(0, 3)), elsewhere, attempt=2),
        committed(2, gone, None, attempt=2),
        committed(3, None, changelog(store, 3, *run(3), own=(3, 5)), attempt=2),
    ]
    store.delete([gone.path])
    log = CommitLog(store, LAYOUT)
    for position, entry in enumerate(entries, 1):
        log.append(position, entry)
    assert changes(store, tmp_path) == [
        KeyChange(1, 2, 101, "a", key(3, b"k1"), b"1"),
        KeyChange(1, 2, 101, "b", key(3, b"k2"), None),
        KeyChange(3, 2, 103, "a", key(3, b"k1"), b"3"),
        KeyChange(3, 2, 103, "b", key(3, b"k2"), None),
    ]


def test_a_changelog_of_another_job_is_not_read(store: LocalObjectStore, tmp_path: Path) -> None:
    handle = changelog(store, 0, SortedRun("a", [key(3, b"k1")], [b"secret"]))
    theirs = msgspec.structs.replace(handle, path="other/changelog/count/0")
    store.put(theirs.path, store.get(handle.path))
    log = CommitLog(store, LAYOUT)
    log.append(log.append(1, opened(1)), committed(0, theirs))
    with pytest.raises(ForeignStateError, match="names other/changelog/count/0"):
        changes(store, tmp_path)
