"""Judges a history from outside: from what is in the store, what readers of the sinks see, and what was ever written.

It knows none of the product's decisions, only the forms of its documents.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from keyscale.identifiers import JobId
from keyscale.state.documents.checked_document import decode_document
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned
from keyscale.state.documents.manifest import Manifest, SnapshotKind, decode_manifest
from keyscale.state.documents.source_positions import decode_positions
from keyscale.state.documents.state_version import NO_BATCH
from keyscale.state.layout import MANIFEST_NAME, Layout
from keyscale.state.log import commit_log
from tests.simulation.job import expected_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from keyscale.state.documents.changelog import ChangelogHandle
    from keyscale.state.documents.log_entries import LogEntry
    from tests.simulation.job import Record
    from tests.simulation.object_store import StoreModel
    from tests.simulation.world import World

IN_PROGRESS_SECONDS = 30.0
"""A younger object may be a part of a checkpoint that is being taken."""
CHECKPOINTS_MORE = 3
"""Those since the last pass of the clean-up, and the one that the attempt was restored from."""


class Readable(Protocol):
    """A sink's system that readers look at."""

    @property
    def rows(self) -> list[tuple[int, ...]]: ...


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """The tokens of a job's committed output.

    Attributes:
        of_history: Of the batches in the job's history.
        ever: Also of the batches that the job has gone back behind.
    """

    of_history: frozenset[str]
    ever: frozenset[str]


@dataclass(slots=True)
class Auditor:
    """Sees each write to the store and each deletion, and notes what must not be.

    Attributes:
        world: The world.
        store: The store.
        findings: What was wrong, each as a sentence.
        manifests: The manifests in the store, by path.
        batches: The last batch of each manifest that was ever written, by path.
        emptied: Positions of each job's log whose entries were deleted.
        late_openings: Those of them at which a sleeper has opened its attempt since; such an opening stays as a fence.
        damaged: Paths of objects that a history has damaged: nothing is said of those that name them.
        rescaled: Attempts of live rescales, which may divide key groups anew at any parallelism.
    """

    world: World
    store: StoreModel
    findings: list[str] = field(default_factory=list)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    entries: dict[str, dict[int, LogEntry]] = field(default_factory=dict)
    deleted_jobs: set[str] = field(default_factory=set)
    records_read: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    emptied: dict[str, set[int]] = field(default_factory=dict)
    late_openings: dict[str, set[int]] = field(default_factory=dict)
    rescaled: set[int] = field(default_factory=set)
    _named_by: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.on_write = self._written
        self.store.on_delete = self._deleted

    def find(self, sentence: str) -> None:
        self.findings.append(sentence)
        self.world.trace.note(self.world, f"FINDING: {sentence}")

    # What happens in the store

    def _written(self, path: str, data: bytes) -> None:
        name = path.rpartition("/")[2]
        if name == MANIFEST_NAME:
            if path in self.manifests:
                self.find(f"the manifest {path} was written twice")
            manifest = decode_manifest(data, path)
            self.manifests[path] = manifest
            self.batches[path] = manifest.batch_id
            self._note_manifest(manifest)
            self.records_read[path] = self._records_read_by(manifest)
            for file in manifest.files():
                self._named_by.setdefault(file.path, set()).add(path)
            log = self.entries.get(manifest.job_id, {})
            newest = max((entry.attempt for entry in log.values()), default=0)
            if manifest.attempt >= newest:  # of what a sleeper publishes late some files may be gone
                self._check_complete(manifest)
            else:
                self.world.reach("an older attempt published a manifest")
        elif "/log/" in path and data != b"the job was deleted":
            record = decode_document(data, commit_log.KIND, commit_log.FORMAT_VERSION, commit_log._Record, path)
            self._appended(path.partition("/")[0], record.position, record.entry)

    def _appended(self, job: str, position: int, entry: LogEntry) -> None:
        """Checks an entry of a log, which has all entries before it, deleted or not."""
        log = self.entries.setdefault(job, {})
        if isinstance(entry, AttemptOpened) and position in self.emptied.get(job, set()):
            self.late_openings.setdefault(job, set()).add(position)
            return  # a sleeper opened where the clean-up has left a gap: the attempt may not commit
        if position in self.emptied.get(job, set()) and log.get(position) == entry:
            return  # the store has applied a driver's earlier try after the clean-up; nothing reads there any more
        if position in log:
            self.find(f"position {position} of the log of {job} was written twice")
        self._note_entry(log, position, entry)
        log[position] = entry
        if isinstance(entry, BatchCommitted | BatchPlanned):
            last = max(log)
            if last != position:
                self.find(f"attempt {entry.attempt} wrote position {position} of the log behind position {last}")
        if isinstance(entry, BatchCommitted):
            self._check_changelogs(job, entry)

    def published(self, job: str, batch_id: int) -> None:
        """Readers see a batch only when it is committed."""
        log = self.entries.get(job, {}).values()
        if not any(isinstance(entry, BatchCommitted) and entry.batch_id == batch_id for entry in log):
            self.find(f"batch {batch_id} of {job} was published before it was committed")

    def committed_tokens(self, job: str) -> CommittedTokens:
        """Returns the tokens of the output that a job has committed."""
        history: dict[int, list[str]] = {}
        ever: list[str] = []
        for _, entry in sorted(self.entries.get(job, {}).items()):
            if isinstance(entry, BatchCommitted):
                history[entry.batch_id] = list(entry.sinks.values())
                ever += entry.sinks.values()
            elif isinstance(entry, AttemptOpened) and entry.rewinds:
                base = NO_BATCH if entry.restored_from is None else self.batches.get(entry.restored_from, NO_BATCH)
                history = {batch_id: tokens for batch_id, tokens in history.items() if batch_id <= base}
        return CommittedTokens(frozenset(token for tokens in history.values() for token in tokens), frozenset(ever))

    def _check_changelogs(self, job: str, entry: BatchCommitted) -> None:
        for changelogs in entry.operators.values():
            for changelog in changelogs:
                for path in () if changelog is None else _paths_of(changelog):
                    if path not in self.store.objects:
                        self.find(f"batch {entry.batch_id} of {job} was committed without {path}")

    def _note_entry(self, log: Mapping[int, LogEntry], position: int, entry: LogEntry) -> None:
        before = log.get(position - 1)
        if isinstance(entry, BatchCommitted):
            if isinstance(before, AttemptOpened):
                self.world.reach("a batch that one attempt had planned was committed by another")
            return
        if not isinstance(entry, AttemptOpened):
            return
        if isinstance(before, AttemptOpened):
            self.world.reach("an attempt opened right after another one, which had done nothing")
        if isinstance(before, BatchPlanned):
            self.world.reach("an attempt opened after a batch that was planned only")
        earlier = [each for each in log.values() if isinstance(each, AttemptOpened)]
        if not entry.key_group_ranges.is_by_count:
            self.world.reach("an attempt divided key groups by size")
        if earlier and earlier[-1].parallelism != entry.parallelism:
            self.world.reach("an attempt opened at another parallelism")
        elif (
            earlier
            and not entry.rewinds
            and entry.attempt not in self.rescaled
            and earlier[-1].key_group_ranges != entry.key_group_ranges
        ):
            self.find(f"attempt {entry.attempt} has other key group ranges than the attempt before")
        self._note_restore(entry, is_first=not earlier)

    def _note_restore(self, entry: AttemptOpened, *, is_first: bool) -> None:
        if entry.rewinds:
            self.world.reach("an attempt went back to a savepoint")
        if entry.claims:
            self.world.reach("an attempt claimed a savepoint")
        if not is_first and entry.restored_from is None and not entry.rewinds:
            self.world.reach("an attempt began from its log alone")
        if self.damaged and self.damaged & self._named_by.keys():
            self.world.reach("an attempt skipped a damaged checkpoint")

    def _note_manifest(self, manifest: Manifest) -> None:
        layout = Layout(manifest.job_id)
        own = f"-{manifest.attempt}-"
        shared = [file.path for file in manifest.files() if file.path.startswith(layout.shared)]
        if any(own not in path for path in shared):
            self.world.reach("a checkpoint named files of an earlier attempt")
        if any(len(subtask.shards) > 1 for operator in manifest.operators for subtask in operator.subtasks):
            self.world.reach("a checkpoint had a subtask of several shards")
        log = self.entries.get(manifest.job_id, {})
        if manifest.kind is SnapshotKind.SAVEPOINT and isinstance(log.get(max(log, default=0)), BatchPlanned):
            self.world.reach("a savepoint was taken during a batch that was planned only")

    def _check_complete(self, manifest: Manifest) -> None:
        for file in manifest.files():
            if file.path not in self.store.objects and file.path not in self.damaged:
                self.find(f"{manifest.path} was published without its file {file.path}")
        for operator in manifest.operators:
            covered = sorted(
                group
                for subtask in operator.subtasks
                for group in range(subtask.key_group_start, subtask.key_group_end + 1)
            )
            if covered != list(range(manifest.max_parallelism)):
                self.find(f"{manifest.path} covers key groups {covered}")

    def is_whole(self, path: str) -> bool:
        """Whether the manifest at a path and all its files are undamaged."""
        return not self.damaged & {path, *(file.path for file in self.manifests[path].files())}

    def _is_needed(self, manifest_path: str) -> bool:
        """Whether a manifest is of a job that exists, or a savepoint, which stays when its job is deleted."""
        job, _, rest = manifest_path.partition("/")
        return job not in self.deleted_jobs or (
            rest.startswith("savepoints/") and not rest.startswith("savepoints/from-")
        )

    def _records_read_by(self, manifest: Manifest) -> int:
        """Returns how many records a snapshot contains."""
        stored = None if manifest.positions is None else self.store.objects.get(manifest.positions.path)
        if stored is None:
            return 0
        positions = decode_positions(stored.data, manifest.path)
        ends = [end for batch in positions.batches for end in batch.ends]
        return max((json.loads(end)["end"] for end in ends), default=0)

    def _deleted(self, path: str) -> None:
        job, _, rest = path.partition("/")
        if rest.startswith("log/") and (position := Layout(JobId(job)).log_position(path)) is not None:
            self.emptied.setdefault(job, set()).add(position)
        manifest = self.manifests.pop(path, None)
        if manifest is not None:
            is_claimed = f"{path.rpartition('/')[0]}/claim.json" in self.store.objects
            self.world.reach("a claimed savepoint was deleted" if is_claimed else "the clean-up deleted a checkpoint")
            for file in manifest.files():
                self._named_by[file.path].discard(path)
        elif path not in self._named_by and "/shared/" in path:
            self.world.reach("the clean-up deleted what nothing had ever named")
        elif needed_by := sorted(each for each in self._named_by.get(path, ()) if self._is_needed(each)):
            self.find(f"{path} was deleted, which {needed_by[0]} needs")

    # What is there at the end

    def check_log(self, job: str) -> None:
        """One line of attempts, and in each history that a rewind begins each batch planned and committed once."""
        history = _History(self.batches)
        for position, entry in sorted(self.entries.get(job, {}).items()):
            for wrong in history.follow(position, entry):
                self.find(f"{wrong}, in the log of {job}")

    def check_stopped(self, job: str, path: str) -> None:
        """After the savepoint with which an attempt stopped, the attempt has committed no batch."""
        manifest = self.manifests.get(path)
        for position, entry in self.entries.get(job, {}).items():
            if (
                manifest is not None
                and isinstance(entry, BatchCommitted)
                and entry.attempt == manifest.attempt
                and position > manifest.log_position
            ):
                self.find(f"batch {entry.batch_id} of {job} was committed after the savepoint {path} of a stop")

    def check_rows(
        self, job: str, sink: Readable, records: Sequence[Record], first: int = 0, *, is_complete: bool = True
    ) -> None:
        """Each record has its effect once, in state and sink; a job that has ended need not have read every record."""
        found = Counter(sink.rows)
        wanted = Counter(row for row in expected_rows(records) if row[1] >= first)
        self.compare(job, wanted if is_complete else wanted & found, found)

    def compare(self, job: str, wanted: Counter[Any], found: Counter[Any]) -> None:
        """Compares the rows that a reader sees with those that a reader has to see."""
        if found == wanted:
            return
        missing, surplus = sorted((wanted - found).elements()), sorted((found - wanted).elements())
        self.find(f"rows of {job}: missing {missing[:6]} ({len(missing)}), surplus {surplus[:6]} ({len(surplus)})")

    def check_left_over(self, job: str, *, retained: int) -> None:
        """Nothing is in the store that nothing needs. Call it after a clean-up with no attempt but the last one."""
        layout = Layout(JobId(job))
        own = [manifest for path, manifest in self.manifests.items() if path.startswith(layout.job)]
        checkpoints = [manifest for manifest in own if manifest.kind is SnapshotKind.CHECKPOINT]
        if len(checkpoints) > retained + CHECKPOINTS_MORE:
            self.find(f"{len(checkpoints)} checkpoints of {job} are left")
        oldest = min((manifest.log_position for manifest in checkpoints), default=0)
        log = self.entries.get(job, {})
        needed = {manifest.path for manifest in own} | self.damaged | self._needed_by(log, oldest)
        last_entries: list[int] = []
        for path in sorted(self.store.objects):
            if not path.startswith(layout.job) or path in needed or path.endswith("/claim.json"):
                continue
            if self.store.age_seconds(path) < IN_PROGRESS_SECONDS:
                continue
            position = layout.log_position(path)
            if position is None:
                self.find(f"{path} is left, which nothing needs")
            elif position in self.late_openings.get(job, ()):
                continue
            elif position <= oldest and not isinstance(log.get(position), AttemptOpened):
                last_entries.append(position)
        if len(last_entries) > 1:  # the last entry stays as a fence, until a pass finds a newer one
            self.find(f"the entries {last_entries} of the log of {job} are left, before the oldest checkpoint")

    def _needed_by(self, log: Mapping[int, LogEntry], oldest: int) -> set[str]:
        needed = {file.path for manifest in self.manifests.values() for file in manifest.files()}
        for position, entry in log.items():
            if position > oldest and isinstance(entry, BatchCommitted):
                for changelogs in entry.operators.values():
                    needed |= {path for changelog in changelogs if changelog for path in _paths_of(changelog)}
        return needed


@dataclass(slots=True)
class _History:
    """What a log says until an entry; times and counters of the product are followed, and never go back."""

    batches: Mapping[str, int]
    attempt: int = 0
    committed: int | None = None
    planned: BatchPlanned | None = None
    processing_ms: int = 0
    records: int = 0
    restores: set[str] = field(default_factory=set)

    def follow(self, position: int, entry: LogEntry) -> Iterator[str]:
        """Follows an entry; yields what is wrong with it."""
        if entry.attempt < self.attempt:
            yield f"position {position} is of attempt {entry.attempt}, after attempt {self.attempt}"
        match entry:
            case AttemptOpened():
                yield from self._open(entry)
            case _ if entry.attempt != self.attempt:
                yield f"position {position} is of attempt {entry.attempt}, which was not opened"
            case BatchPlanned():
                if self.planned is not None and self.planned.batch_id == entry.batch_id:
                    yield f"batch {entry.batch_id} was planned again"
                self.planned = entry
            case BatchCommitted():
                yield from self._commit(entry)

    def _open(self, entry: AttemptOpened) -> Iterator[str]:
        if entry.attempt == self.attempt:
            yield f"attempt {entry.attempt} was opened twice"
        if entry.rewinds:
            base = entry.restored_from
            self.committed = NO_BATCH if base is None else self.batches.get(base)
            self.planned, self.processing_ms = None, 0
            if entry.restore_id in self.restores:
                yield f"the restore {entry.restore_id} was carried out twice"
            self.restores |= {entry.restore_id} - {None}
        if isinstance(entry.counters, JobCounters):
            yield from self._count(f"the opening of attempt {entry.attempt}", entry.counters, 0)
        self.attempt = entry.attempt

    def _commit(self, entry: BatchCommitted) -> Iterator[str]:
        if self.committed is not None and entry.batch_id != self.committed + 1:
            yield f"batch {entry.batch_id} was committed after batch {self.committed}"
        if entry.time.processing_ms < self.processing_ms:
            yield f"the processing time of batch {entry.batch_id} is earlier than that of the batch before"
        if isinstance(entry.counters, JobCounters):
            yield from self._count(f"batch {entry.batch_id}", entry.counters, entry.input_records)
        self.committed, self.planned, self.processing_ms = entry.batch_id, None, entry.time.processing_ms

    def _count(self, where: str, counters: JobCounters, added: int) -> Iterator[str]:
        counted = counters.input_records
        if counted != self.records + added:
            yield f"{where} counts {counted} records after {self.records} and {added}"
        by_function = sum(series.values[0] for series in counters.user_series)
        if by_function != counted:
            yield f"the function counts {by_function} of {counted} records in {where}"
        self.records = counted


def _paths_of(changelog: ChangelogHandle) -> list[str]:
    paths = [changelog.path, *(file.path for file in changelog.sorted_files)]
    return paths if changelog.operator_state is None else [*paths, changelog.operator_state.path]
