"""Writes the state of one subtask of a new savepoint.

The entries of each state are sorted and written as sorted files. An empty store takes the files over as they are.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from keyscale.identifiers import OperatorUid, SubtaskIndex

from ..documents.state_version import StateVersion
from ..engine.rocksdb import RocksDbEngine, SortedFiles
from ..local.subtask_directory import local_failures, snapshots_root
from ..operator_state.operator_files import NAME as OPERATOR_STATE_NAME
from ..snapshot.snapshot import LocalSnapshot, link_snapshot, upload_snapshot
from .entry_sorter import MEMORY_BYTES, EntrySorter

if TYPE_CHECKING:
    from pathlib import Path

    from ..documents.manifest import SnapshotHandle
    from ..keyed.schema import KeyedSchema
    from ..keys.key_groups import KeyGroupRange
    from ..operator_state.backend import OperatorStateSnapshot
    from .new_savepoint import NewSavepoint
    from .row_encoder import StoredEntries


@dataclass(frozen=True, slots=True)
class NewSubtask:
    """A subtask of an operator in a new savepoint; picklable.

    Attributes:
        savepoint: The savepoint.
        uid: The operator.
        schema: The operator's schema; None: it has no keyed state.
        index: The subtask.
        key_groups: Its key groups.
    """

    savepoint: NewSavepoint
    uid: str
    schema: KeyedSchema | None
    index: int
    key_groups: KeyGroupRange


class SubtaskWriter:
    """Collects the entries of a subtask, and writes its files.

    Use it in a `with` statement, which removes its scratch files.
    """

    def __init__(self, subtask: NewSubtask, scratch: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        """Creates the writer.

        Args:
            subtask: The subtask.
            scratch: A directory with room for twice the subtask's state.
            memory_bytes: The bytes of entries that stay in memory.
        """
        self._subtask = subtask
        self._root = scratch / f"subtask-{uuid.uuid4().hex}"
        families = 0 if subtask.schema is None else len(subtask.schema.states) + len(subtask.schema.timers or ())
        self._memory_bytes = memory_bytes // max(1, families)
        self._sorters: dict[str, EntrySorter] = {}
        with local_failures(self._root):
            self._root.mkdir(parents=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def add(self, family: str, entries: StoredEntries) -> None:
        """Adds entries of a state or of timers, in any order.

        Raises:
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """
        if family not in self._sorters:
            self._sorters[family] = EntrySorter(family, self._root, self._subtask.key_groups, self._memory_bytes)
        self._sorters[family].add(entries)

    def finish(self, operator_state: OperatorStateSnapshot | None = None) -> SnapshotHandle:
        """Writes the files, and stores them in the object store.

        Args:
            operator_state: The operator state of the subtask.

        Raises:
            RowsInvalidError: Two rows are of the same key, map entry, list element or timer.
            DiskFullError, DiskReadOnlyError, StoreIOError: The scratch directory cannot be written.
            StoreUnavailableError: The object store is unavailable.
        """
        subtask, savepoint = self._subtask, self._subtask.savepoint
        unique = uuid.uuid4().hex
        directory = snapshots_root(self._root) / f"{savepoint.checkpoint_id}-{unique}"
        engine = RocksDbEngine(self._root / "store")
        try:
            for family, sorter in sorted(self._sorters.items()):
                files = SortedFiles(self._root)
                for run in sorter.runs():
                    files.append(run)
                files.finish()
                if files.paths:
                    engine.ingest(family, files.paths)
            link_snapshot(directory, [engine])
            if operator_state is not None and operator_state.states:
                with local_failures(directory):
                    (directory / OPERATOR_STATE_NAME).write_bytes(operator_state.to_bytes())
        finally:
            engine.close()
        lineage = hashlib.sha256(f"{savepoint.unique}\n{unique}".encode()).hexdigest()
        local = LocalSnapshot(
            directory=str(directory),
            local_root=str(self._root),
            job_id=savepoint.job_id,
            operator_uid=OperatorUid(subtask.uid),
            subtask=SubtaskIndex(subtask.index),
            attempt=savepoint.attempt,
            checkpoint_id=savepoint.checkpoint_id,
            unique=unique,
            version=StateVersion(savepoint.batch_id, lineage),
            key_groups=subtask.key_groups,
            shards=(subtask.key_groups,),
            schema=subtask.schema,
        )
        return upload_snapshot(local, savepoint.store(), savepoint.layout, {}, savepoint.savepoint_id).handle
