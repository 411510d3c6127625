"""The objects of a job at the end of a soak: a whole history, whole snapshots, and nothing else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.identifiers import JobId
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted
from keyscale.state.documents.manifest import SnapshotKind
from keyscale.state.layout import Layout, location_of
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.opening import open_store
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.state.documents.log_entries import LogEntry
    from keyscale.state.documents.manifest import Manifest


class JobObjects:
    """A job's objects, and all that it has ever written into its log.

    Args:
        store_url: The object store.
        job_id: The job.
        history: The directory with a copy of each log entry, those that were deleted among them.
    """

    def __init__(self, store_url: str, job_id: str, history: Path) -> None:
        self.store = open_store(store_url)
        self._job_id = JobId(job_id)
        self._layout = Layout(self._job_id)
        self._history = history
        self._log = CommitLog(LocalObjectStore(history), self._layout)

    def entries_after(self, position: int) -> Iterator[tuple[int, int, LogEntry]]:
        """Yields the log's entries after a position, each with its position and the time at which it was written.

        Raises:
            DocumentCorruptError: The newest one is being written.
        """
        while (path := self._history / self._layout.log_entry(position + 1)).exists():
            position += 1
            written_ms = int(path.stat().st_mtime * 1000)
            yield position, written_ms, self._log.between(position - 1, position)[0]

    def last_entry(self) -> LogEntry | None:
        """Returns the newest entry of the log."""
        last = self._log.last()
        return None if last is None else last[1]

    def savepoint(self) -> str:
        """Returns the location of the savepoint with which the job has ended."""
        savepoints = [each for each in self._manifests().values() if each.kind is SnapshotKind.SAVEPOINT]
        return location_of(self.store.url, max(savepoints, key=lambda manifest: manifest.checkpoint_id).path)

    def count(self) -> int:
        return sum(1 for _ in self.store.list(self._layout.job))

    def check_history(self) -> int:
        """Asserts that each batch was committed once, by the newest attempt. Returns how many there are."""
        entries = [entry for _, entry in self._log.read()]  # which fails if a position is missing
        committed = [entry.batch_id for entry in entries if isinstance(entry, BatchCommitted)]
        assert committed == list(range(len(committed))), "a batch that was committed twice, or never"
        attempts = [entry.attempt for entry in entries]
        assert attempts == sorted(attempts), "an attempt that wrote after a later one"
        opened = [entry.attempt for entry in entries if isinstance(entry, AttemptOpened)]
        assert len(opened) == len(set(opened)), "an attempt that was opened twice"
        return len(committed)

    def check_snapshots(self) -> None:
        """Asserts that each snapshot holds every key group once, and that all files that it names are there and whole.

        So must be the changelogs that a recovery from the oldest retained checkpoint replays.
        """
        manifests = self._manifests().values()
        assert manifests
        for manifest in manifests:
            for operator in manifest.operators:
                own = [(each.key_group_start, each.key_group_end) for each in operator.subtasks]
                shards = [
                    (shard.key_group_start, shard.key_group_end) for each in operator.subtasks for shard in each.shards
                ]
                everything = list(range(manifest.max_parallelism))
                assert _key_groups(own) == everything, f"{manifest.path}: {operator.uid}: {own}"
                assert _key_groups(shards) == everything, f"{manifest.path}: {operator.uid}: {shards}"
            for file in manifest.files():
                self._check(file.path, file.size_bytes, file.sha256)
        oldest = min(each.log_position for each in manifests if each.kind is SnapshotKind.CHECKPOINT)
        for _, entry in self._log.read(oldest):
            if isinstance(entry, BatchCommitted):
                for changelog in (each for of_operator in entry.operators.values() for each in of_operator if each):
                    self._check(changelog.path, changelog.size_bytes, changelog.sha256)

    def collect(self) -> int:
        """Deletes what nothing needs, however new, and asserts that the rest is named. Returns how many it deleted."""
        before = self.count()
        policy = RetentionPolicy(age_floor_ms=0)
        delete_planned(self.store, plan_deletion(gather_facts(self.store, self._job_id, now_ms()), policy))
        again = plan_deletion(gather_facts(self.store, self._job_id, now_ms()), policy)
        assert (again.manifests, again.files) == ((), ()), "a second collection that finds more"
        manifests = self._manifests()
        named = {file.path for manifest in manifests.values() for file in manifest.files()} | manifests.keys()
        for _, entry in self._log.read():
            if isinstance(entry, BatchCommitted):
                named |= {path for each in entry.operators.values() for log in each if log for path in log.paths()}
        left = {info.path for info in self.store.list(self._layout.job)}
        orphans = sorted(path for path in left - named if self._layout.log_position(path) is None)
        assert orphans == [], orphans
        return before - len(left)

    def _manifests(self) -> dict[str, Manifest]:
        facts = gather_facts(self.store, self._job_id, now_ms())
        assert facts.unreadable == frozenset()
        return dict(facts.manifests)

    def _check(self, path: str, size_bytes: int, sha256: str) -> None:
        data = self.store.get(path)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (size_bytes, sha256), path


def _key_groups(ranges: list[tuple[int, int]]) -> list[int]:
    return sorted(group for first, last in ranges for group in range(first, last + 1))
