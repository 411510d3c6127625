"""The files that operator state is stored in: one a subtask and batch that changed it, whole. Which of them a subtask starts from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state.manifest import FileHandle
from state.objects import ObjectCorruptError
from state.operator_state import OperatorStateBackend, OperatorStateSnapshot, redistribute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state.identifiers import Attempt, SubtaskIndex
    from state.objects import ObjectStore

NAME = "operator-state"


@dataclass(frozen=True, slots=True)
class OperatorStatePlan:
    """What a subtask's operator state is read from; small, and may be pickled.

    Attributes:
        files: Its own file, or those of all subtasks, by index, that an earlier attempt had; None for one that has no state.
        inherited: Whether it is those of an earlier attempt, to be dealt out. The attempt's first batch has every subtask
            write a file of its own: until then what an earlier attempt wrote is what counts, as a whole.
    """

    files: tuple[FileHandle | None, ...] = ()
    inherited: bool = False

    @property
    def is_to_be_dealt(self) -> bool:
        return self.inherited and any(file is not None for file in self.files)

    def followed_by(self, written: FileHandle | None) -> OperatorStatePlan:
        """The plan after a batch that wrote this file (None: it did not change the operator state)."""
        return self if written is None else OperatorStatePlan((written,))


def store_operator_state(store: ObjectStore, path: str, snapshot: OperatorStateSnapshot | None) -> FileHandle | None:
    """Write a file beside what is at a path; durable when this returns. Nothing is written of nothing."""
    if snapshot is None:
        return None
    path = f"{path}.{NAME}"
    data = snapshot.to_bytes()
    store.put(path, data)
    return FileHandle(NAME, path, len(data), hashlib.sha256(data).hexdigest())


def open_operator_state(
    store: ObjectStore, plan: OperatorStatePlan, index: SubtaskIndex, parallelism: int
) -> OperatorStateBackend:
    """The operator state of a subtask.

    Raises:
        ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
        SerializationError: A file cannot be read.
        StateSchemaMismatchError: The files of several subtasks contradict each other.
    """
    snapshots = [_read(store, file) for file in plan.files]
    if not plan.is_to_be_dealt:
        return OperatorStateBackend(snapshots[0] if snapshots and not plan.inherited else None)
    given = redistribute(snapshots, parallelism)[index]
    return OperatorStateBackend(given, redistribute(snapshots, parallelism, claimed=False)[index])


def files_after(
    known: Sequence[FileHandle | None], *, of: Attempt | None, attempt: Attempt, written: Sequence[FileHandle | None]
) -> tuple[FileHandle | None, ...] | None:
    """The files of all subtasks after a batch. Pure.

    Args:
        known: Before it.
        of: The attempt that wrote them.
        attempt: The one whose batch it is.
        written: What its subtasks wrote, by index.

    Returns:
        The files; None if an attempt has taken over only some of the state of the one before it.
    """
    if not any(file is not None for file in written):
        return tuple(known)
    if of == attempt and len(known) == len(written):
        return tuple(new or old for new, old in zip(written, known, strict=True))
    if any(file is not None for file in known) and None in written:
        return None
    return tuple(written)


def _read(store: ObjectStore, file: FileHandle | None) -> OperatorStateSnapshot:
    if file is None:
        return OperatorStateSnapshot()
    data = store.get(file.path)
    if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise ObjectCorruptError(f"{file.path} does not have the length and SHA-256 recorded for it")
    return OperatorStateSnapshot.from_bytes(data)
