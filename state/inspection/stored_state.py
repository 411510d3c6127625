"""Reads a job's stored state as facts for a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ..documents.source_positions import KINDS_NAME, ORDER_NAME, SourcePositions, read_positions
from ..log.recovery import recover
from ..objects.object_store import check_size
from ..operator_state.operator_files import read_operator_state

if TYPE_CHECKING:
    from keyscale.identifiers import JobId, OperatorUid

    from ..documents.manifest import Manifest
    from ..log.resolution import ResumePoint
    from ..objects.object_store import ObjectStore
    from ..operator_state.backend import StoredOperatorState

UNNAMED_SOURCE = "source"
"""The uid of a job's only, unnamed source, which is not recorded."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state that a job has stored.

    Attributes:
        manifest: The checkpoint or savepoint for a restore, or None.
        resume: The point of its history to resume from.
        operator_state: The stored operator state, by operator uid and name.
        sources: The sources with stored positions: the kinds of their inputs, if known, by uid.
        sinks: The uids of the sinks that the last batch has written to.
    """

    manifest: Manifest | None
    resume: ResumePoint
    operator_state: dict[OperatorUid, dict[str, StoredOperatorState]]
    sources: dict[str, tuple[str, ...]]
    sinks: frozenset[str]


def read_stored_state(store: ObjectStore, job_id: JobId, hint: str | None) -> StoredState:
    """Reads a job's current stored state; arguments as for `recover`.

    See `keyscale.state.log.recovery.recover`.

    Raises:
        KeyscaleError: The store does not answer, or its content cannot be read.
    """
    recovery = recover(store, job_id, hint)
    manifest, resume = recovery.base.manifest, recovery.resume
    operator_state: dict[OperatorUid, dict[str, StoredOperatorState]] = {}
    files = [file for each in resume.operators.values() for file in each.operator_state if file is not None]
    check_size("all operator state", sum(file.size_bytes for file in files), store.get_bytes_max)
    for uid, history in resume.operators.items():
        states = {
            name: state
            for file in history.operator_state
            if file is not None
            for name, state in read_operator_state(store, file).states.items()
        }
        if states:
            operator_state[uid] = states
    # A batch writes to all sinks of its job. Before the first batch after a snapshot, the log names no sinks.
    sinks = resume.sinks or ({} if manifest is None else manifest.sinks)
    return StoredState(manifest, resume, operator_state, _sources(store, manifest, resume), frozenset(sinks))


def _sources(store: ObjectStore, manifest: Manifest | None, resume: ResumePoint) -> dict[str, tuple[str, ...]]:
    """Returns the known kinds of inputs of each source, by uid.

    Sources without positions are omitted.
    """
    order: tuple[str, ...] | None = None
    files: dict[str, str] = {}
    if manifest is not None and manifest.positions is not None and not resume.replaces_positions:
        positions = read_positions(store, manifest.positions)
        if isinstance(positions, SourcePositions):
            order, files = positions.sources, dict(positions.others)
        else:
            files = dict(positions)
    files |= resume.positions
    if ORDER_NAME in files:
        order = tuple(msgspec.json.decode(files[ORDER_NAME], type=list[str]))
    elif order is None:
        order = (UNNAMED_SOURCE,) if files else ()
    kinds = msgspec.json.decode(files.get(KINDS_NAME, "{}"), type=dict[str, tuple[str, ...]])
    return {uid: kinds.get(uid, ()) for uid in order}
