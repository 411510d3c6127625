"""A summary of a checkpoint or savepoint, with counted entries and bytes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ..keyed.schema import StateSchema
from ..keys.key_groups import KEY_GROUP_BYTES

if TYPE_CHECKING:
    from ..documents.manifest import OperatorSnapshot
    from .checkpoint_reader import CheckpointReader

LARGEST_KEY_GROUPS = 5


class StateSummary(msgspec.Struct, frozen=True):
    """One state, or the timers, of one operator.

    Attributes:
        name: The state's name.
        schema: The stored schema; None for timers, which are not declared.
        entries: Number of stored entries, including expired entries that are still stored.
        bytes: Size of their keys and values, uncompressed.
    """

    name: str
    schema: StateSchema | None
    entries: int
    bytes: int


class SubtaskSummary(msgspec.Struct, frozen=True):
    """One subtask's snapshot."""

    subtask: int
    key_group_start: int
    key_group_end: int
    shards: int
    files: int
    file_bytes: int


class KeyGroupSummary(msgspec.Struct, frozen=True):
    """The content of one key group in all states."""

    key_group: int
    entries: int
    bytes: int


class OperatorSummary(msgspec.Struct, frozen=True):
    """One operator, with its few largest key groups in `largest_key_groups`.

    They are the groups with the most bytes, the largest first.
    """

    uid: str
    parallelism: int
    key: tuple[tuple[str, str | list[object]], ...]
    states: tuple[StateSummary, ...]
    subtasks: tuple[SubtaskSummary, ...]
    key_groups_with_state: int
    largest_key_groups: tuple[KeyGroupSummary, ...]


class CheckpointSummary(msgspec.Struct, frozen=True):
    """A whole checkpoint or savepoint."""

    job_id: str
    checkpoint_id: int
    kind: str
    savepoint_id: str | None
    attempt: int
    batch_id: int
    created_at_ms: int
    max_parallelism: int
    hash_id: str
    state_size_bytes: int
    operators: tuple[OperatorSummary, ...]


def summarize(reader: CheckpointReader) -> CheckpointSummary:
    """Counts every entry of a checkpoint, one subtask at a time.

    Raises:
        ObjectNotFoundError, ObjectCorruptError: A file is missing or damaged.
    """
    manifest = reader.manifest
    return CheckpointSummary(
        job_id=manifest.job_id,
        checkpoint_id=manifest.checkpoint_id,
        kind=manifest.kind,
        savepoint_id=manifest.savepoint_id,
        attempt=manifest.attempt,
        batch_id=manifest.batch_id,
        created_at_ms=manifest.created_at_ms,
        max_parallelism=manifest.max_parallelism,
        hash_id=manifest.hash_id,
        state_size_bytes=manifest.state_size_bytes,
        operators=tuple(_summarize_operator(reader, operator) for operator in manifest.operators),
    )


def _summarize_operator(reader: CheckpointReader, operator: OperatorSnapshot) -> OperatorSummary:
    schema = reader.schema(operator)
    declared = {state.name: state for state in schema.states} if schema is not None else {}
    state_entries: Counter[str] = Counter(dict.fromkeys(declared, 0))
    state_bytes: Counter[str] = Counter()
    group_entries: Counter[int] = Counter()
    group_bytes: Counter[int] = Counter()
    for subtask in reader.subtasks(operator):
        for family in subtask.engine.families():
            for key, value in subtask.engine.scan(family, b"", None):
                size_bytes = len(key) + len(value)
                key_group = int.from_bytes(key[:KEY_GROUP_BYTES], "big")
                state_entries[family] += 1
                state_bytes[family] += size_bytes
                group_entries[key_group] += 1
                group_bytes[key_group] += size_bytes
    return OperatorSummary(
        uid=operator.uid,
        parallelism=operator.parallelism,
        key=schema.key if schema is not None else (),
        states=tuple(
            StateSummary(name, declared.get(name), state_entries[name], state_bytes[name])
            for name in sorted(state_entries)
        ),
        subtasks=tuple(
            SubtaskSummary(
                snapshot.subtask,
                snapshot.key_group_start,
                snapshot.key_group_end,
                len(snapshot.shards),
                len(snapshot.distinct_files),
                snapshot.state_size_bytes,
            )
            for snapshot in operator.subtasks
        ),
        key_groups_with_state=len(group_entries),
        largest_key_groups=tuple(
            KeyGroupSummary(key_group, group_entries[key_group], size_bytes)
            for key_group, size_bytes in group_bytes.most_common(LARGEST_KEY_GROUPS)
        ),
    )
