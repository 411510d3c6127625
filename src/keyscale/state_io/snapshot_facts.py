"""Describes a snapshot: operators, states, sizes, source positions and watermarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.state.doors.reading import CheckpointReader, source_ends, summarize

if TYPE_CHECKING:
    from .state_reader import StateReader, StateTable


def facts_of(state: StateReader) -> dict[str, Any]:
    """Returns the facts about a reader's state, for JSON.

    Raises:
        KeyscaleError: The store does not answer, or a file is missing or damaged.
    """
    point, manifest = state.point, state.point.manifest
    times = point.resume.time.event_times
    snapshot: dict[str, Any] = {}
    if manifest is not None:
        snapshot = {
            "job_id": manifest.job_id,
            "checkpoint_id": manifest.checkpoint_id,
            "savepoint_id": manifest.savepoint_id,
            "kind": str(manifest.kind),
            "attempt": manifest.attempt,
            "created_at_ms": manifest.created_at_ms,
            "state_size_bytes": manifest.state_size_bytes,
        }
    return {
        **snapshot,
        "batch_id": point.batch_id,
        "max_parallelism": point.max_parallelism,
        "hash_id": str(point.hash_id),
        "processing_time_ms": point.resume.time.processing_ms,
        "source_positions": source_ends(point),
        "operators": [
            {
                "uid": uid,
                "key": _key_of(state, uid),
                "watermark_ms": times[uid].watermark_ms if uid in times else None,
                "subtasks": [
                    {
                        "subtask": snapshot.subtask,
                        "key_group_start": snapshot.key_group_start,
                        "key_group_end": snapshot.key_group_end,
                        "shards": len(snapshot.shards),
                        "files": len(snapshot.distinct_files),
                        "state_size_bytes": snapshot.state_size_bytes,
                    }
                    for snapshot in history.snapshots
                ],
                "tables": [table_facts(table) for table in state.tables(uid)],
            }
            for uid, history in point.resume.operators.items()
        ],
    }


def counts_of(state: StateReader) -> dict[str, list[dict[str, Any]]]:
    """Counts a snapshot's entries and bytes by state and key group.

    The counts include expired entries that are still stored, and timers that manifests of earlier versions do not list.

    Raises:
        KeyscaleError: The store does not answer, or a file is missing or damaged.
    """
    point = state.point
    assert point.manifest is not None  # noqa: S101 - the reader of a location
    summary = summarize(CheckpointReader(point.store, point.manifest, state.scratch))
    return {
        "states": [
            {"operator": operator.uid, "state": each.name, "entries": each.entries, "size_bytes": each.bytes}
            for operator in summary.operators
            for each in operator.states
        ],
        "largest_key_groups": [
            {"operator": operator.uid, "key_group": each.key_group, "entries": each.entries, "size_bytes": each.bytes}
            for operator in summary.operators
            for each in operator.largest_key_groups
        ],
    }


def table_facts(table: StateTable) -> dict[str, Any]:
    """Returns the names, kind and columns of a table."""
    return {
        "operator": table.operator,
        "state": table.name,
        "kind": table.kind,
        "columns": [{"name": field.name, "type": str(field.type)} for field in table.schema],
    }


def _key_of(state: StateReader, uid: str) -> list[dict[str, str]]:
    schema = state.point.operator(uid).schema
    return [] if schema is None else [{"name": each.name, "type": str(each.type)} for each in schema.key_schema()]
