"""Checkpoints and savepoints without a driver: real files in a real store, and their rows."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from keyscale.db.models import Checkpoint, CheckpointSubtask, Job, Operation
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.manifest import (
    FileHandle,
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    ShardHandle,
    SnapshotHandle,
    SnapshotKind,
    write_manifest,
)
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout, location_of
from keyscale.state.objects.opening import open_store
from keyscale.vocabulary import CheckpointStatus, CommandStatus, OperationKind, OperationStatus, SnapshotOwner
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sqlalchemy.orm import Session, sessionmaker


BEGUN_MS = 1_795_000_000_000


def checkpoint_counts(
    sessions: sessionmaker[Session], job_id: str, directory: Path, counts: dict[int, int], parallelism: int = 1
) -> str:
    """Takes and registers a job's first checkpoint, of real state with these counts by key; returns its location."""
    with sessions.begin() as session:
        store = open_store(session.get_one(Job, job_id).store_url)
        state = StateJob(store, directory / "local", job_id=JobId(job_id))
        state.start(parallelism)
        state.run_batch(counts)
        location = location_of(store.url, state.checkpoint()[0].path)
        session.add(
            Checkpoint(
                job_id=job_id, checkpoint_id=1, status=CheckpointStatus.COMPLETED, attempt=1, is_savepoint=False,
                checkpointed_size=1, state_size=1, end_to_end_duration=1, owner=SnapshotOwner.PLATFORM,
                trigger_timestamp=1, processed_records=0, num_subtasks=1, num_acknowledged_subtasks=1,
                external_path=location,
            )
        )  # fmt: skip
    return location


class Snapshots:
    """Makes checkpoints and savepoints of one operator, as a driver leaves them in the store and in the database.

    Args:
        sessions: The database.
        job_id: The job.
    """

    def __init__(self, sessions: sessionmaker[Session], job_id: str) -> None:
        self._sessions = sessions
        self.job_id = job_id
        self.layout = Layout(JobId(job_id))
        with sessions() as session:
            job = session.get_one(Job, job_id)
        self.store_url, self.max_parallelism = job.store_url, job.max_parallelism
        self.store = open_store(self.store_url)

    def take(
        self,
        number: int,
        contents: dict[str, bytes],
        savepoint_id: str | None = None,
        *,
        change: OperationKind | None = None,
        attempt: int = 1,
        operator_uid: str = "totals",
        key_group_bytes: Sequence[int] = (),
        largest: Mapping[int, int] | None = None,
        positions: bytes | None = None,
    ) -> str:
        """Writes a snapshot with files by path and positions as given, and its row; returns the manifest's path.

        A savepoint is a user's, or of a change of this kind with the savepoint's id. The sizes of key groups are
        counted, or else estimates of which these largest ones are known.
        """
        of_sources = None
        if positions is not None:
            path = self.layout.positions(CheckpointId(number), savepoint_id, "x")
            self.store.put(path, positions)
            of_sources = FileHandle("positions.json", path, len(positions), hashlib.sha256(positions).hexdigest())
        files = tuple(
            FileHandle(path.rpartition("/")[2], path, len(data), hashlib.sha256(data).hexdigest(), shared=True)
            for path, data in contents.items()
        )
        for path, data in contents.items():
            self.store.put(path, data)
        shard = ShardHandle(0, self.max_parallelism - 1, files)
        handle = SnapshotHandle(SubtaskIndex(0), 0, self.max_parallelism - 1, BatchId(number), "x", (shard,))
        operator = OperatorSnapshot(
            uid=OperatorUid(operator_uid), parallelism=1, declaration=OperatorDeclaration(), subtasks=(handle,)
        )
        path = write_manifest(
            self.store,
            Manifest(
                job_id=JobId(self.job_id),
                checkpoint_id=CheckpointId(number),
                kind=SnapshotKind.CHECKPOINT if savepoint_id is None else SnapshotKind.SAVEPOINT,
                attempt=Attempt(1),
                batch_id=BatchId(number),
                log_position=0,
                max_parallelism=self.max_parallelism,
                hash_id=HashId.SPARK,
                created_at_ms=1,
                operators=(operator,),
                savepoint_id=savepoint_id,
                positions=of_sources,
            ),
        )
        size = sum(map(len, contents.values()))
        common = {"job_id": self.job_id, "checkpoint_id": number, "status": CheckpointStatus.COMPLETED}
        sizes = {"checkpointed_size": size, "state_size": size, "end_to_end_duration": 1}
        with self._sessions.begin() as session:
            session.add(
                Checkpoint(
                    **common, **sizes, attempt=attempt,
                    is_savepoint=savepoint_id is not None, savepoint_id=savepoint_id,
                    owner=SnapshotOwner.USER if savepoint_id and change is None else SnapshotOwner.PLATFORM,
                    trigger_timestamp=BEGUN_MS + number * 1000, processed_records=0, num_subtasks=1,
                    num_acknowledged_subtasks=1, external_path=location_of(self.store_url, path),
                )
            )  # fmt: skip
            if savepoint_id is not None:
                session.add(
                    Operation(
                        id=savepoint_id, job_id=self.job_id, old_attempt=attempt,
                        kind=change or OperationKind.SAVEPOINT,
                        status=OperationStatus.COMPLETED, command_status=CommandStatus.COMPLETED, checkpoint_id=number,
                        location=location_of(self.store_url, path), requested_at_ms=1, ended_at_ms=2,
                    )
                )  # fmt: skip
            session.flush()
            session.add(
                CheckpointSubtask(
                    **common, **sizes, operator_uid=operator_uid, subtask=0, key_group_start=0,
                    key_group_end=self.max_parallelism - 1, start_delay=0, sync_duration=0, async_duration=0,
                    files=len(files), entries=number,
                    key_group_bytes=list(key_group_bytes), key_group_entries=list(key_group_bytes),
                    largest_key_groups=[
                        {"key_group": group, "size_bytes": size, "entries": size if largest is None else None}
                        for group, size in (dict(enumerate(key_group_bytes)) if largest is None else largest).items()
                    ],
                )
            )  # fmt: skip
        return path

    def paths(self) -> set[str]:
        return {info.path.removeprefix(self.layout.job) for info in self.store.list(self.layout.job)}
