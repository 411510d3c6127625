"""The files of operator state, each complete for its subtask.

A batch that changes a subtask's operator state writes one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..documents.manifest import FileHandle
from ..objects.errors import ObjectCorruptError
from .backend import OperatorStateBackend, OperatorStateSnapshot, redistribute

if TYPE_CHECKING:
    from keyscale.identifiers import SubtaskIndex

    from ..objects.object_store import ObjectStore

NAME = "operator-state"


@dataclass(frozen=True, slots=True)
class OperatorStatePlan:
    """The files of a subtask's operator state; small and picklable.

    Attributes:
        files: The subtask's own file, or the files of all subtasks of an earlier attempt, by index; None for a subtask
            without operator state.
        inherited: Whether the files are an earlier attempt's, to be redistributed. In the attempt's first batch every
            subtask writes its own file; until then the files of the earlier attempt count, all together.
    """

    files: tuple[FileHandle | None, ...] = ()
    inherited: bool = False

    @property
    def needs_redistribution(self) -> bool:
        return self.inherited and any(file is not None for file in self.files)

    def followed_by(self, written: FileHandle | None) -> OperatorStatePlan:
        """Returns the plan after a batch (None: unchanged operator state)."""
        return self if written is None else OperatorStatePlan((written,))


def store_operator_state(store: ObjectStore, path: str, snapshot: OperatorStateSnapshot | None) -> FileHandle | None:
    """Writes a snapshot durably to a file beside the changelog at `path`.

    Writes nothing for None.
    """
    if snapshot is None:
        return None
    path = f"{path}.{NAME}"
    data = snapshot.to_bytes()
    store.put(path, data)
    return FileHandle(NAME, path, len(data), hashlib.sha256(data).hexdigest())


def open_operator_state(
    store: ObjectStore, plan: OperatorStatePlan, index: SubtaskIndex, parallelism: int
) -> OperatorStateBackend:
    """Opens the operator state of a subtask.

    Raises:
        ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
        SerializationError: A file cannot be read.
        StateSchemaMismatchError: The files of several subtasks contradict each other.
    """
    snapshots = [OperatorStateSnapshot() if file is None else read_operator_state(store, file) for file in plan.files]
    if not plan.needs_redistribution:
        return OperatorStateBackend(snapshots[0] if snapshots and not plan.inherited else None)
    given = redistribute(snapshots, parallelism)[index]
    return OperatorStateBackend(given, redistribute(snapshots, parallelism, claimed=False)[index])


def read_operator_state(store: ObjectStore, file: FileHandle) -> OperatorStateSnapshot:
    """Reads a subtask's operator state.

    Raises:
        ObjectNotFoundError, ObjectCorruptError: The file is missing or damaged.
        SerializationError: The file cannot be read.
    """
    data = store.get(file.path)
    if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise ObjectCorruptError(f"{file.path} does not have the length and SHA-256 recorded for it")
    return OperatorStateSnapshot.from_bytes(data)
