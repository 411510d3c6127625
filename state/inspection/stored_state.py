"""Reads what a job has stored, as facts for a plan: the schemas of its state and where the state's files are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from keyscale.state.documents.source_positions import SourcePositions, read_positions
from keyscale.state.log.recovery import recover
from keyscale.state.operator_state.operator_files import read_operator_state

if TYPE_CHECKING:
    from keyscale.state.documents.manifest import Manifest
    from keyscale.state.identifiers import JobId, OperatorUid
    from keyscale.state.log.resolution import ResumePoint
    from keyscale.state.objects.object_store import ObjectStore
    from keyscale.state.operator_state.backend import StoredOperatorState

SOURCES_FILE = "keyscale-sources.json"
"""The name under which the log records the uids of a job's sources, beside Spark's own files."""
UNNAMED_SOURCE = "source"
"""The uid of a job's only source that has no name of its own: no uids are recorded then."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state that a job has stored.

    Attributes:
        manifest: The checkpoint or savepoint that it would be restored from; None: there is none.
        resume: The point of its history that it would resume from.
        operator_state: The operator states of each operator that has any, by uid and name.
        sources: The uids of the sources whose positions are stored.
    """

    manifest: Manifest | None
    resume: ResumePoint
    operator_state: dict[OperatorUid, dict[str, StoredOperatorState]]
    sources: tuple[str, ...]


def read_stored_state(store: ObjectStore, job_id: JobId, hint: str | None) -> StoredState:
    """Reads what a job has stored, now. Arguments as for `keyscale.state.log.recovery.recover`.

    Raises:
        KeyscaleError: The store does not answer, or what it holds cannot be read.
    """
    recovery = recover(store, job_id, hint)
    manifest, resume = recovery.base.manifest, recovery.resume
    operator_state: dict[OperatorUid, dict[str, StoredOperatorState]] = {}
    for uid, history in resume.operators.items():
        states = {
            name: state
            for file in history.operator_state
            if file is not None
            for name, state in read_operator_state(store, file).states.items()
        }
        if states:
            operator_state[uid] = states
    return StoredState(manifest, resume, operator_state, _sources(store, manifest, resume))


def _sources(store: ObjectStore, manifest: Manifest | None, resume: ResumePoint) -> tuple[str, ...]:
    recorded, names = resume.positions.get(SOURCES_FILE), set(resume.positions)
    if recorded is None and manifest is not None and manifest.positions is not None:
        positions = read_positions(store, manifest.positions)
        if isinstance(positions, SourcePositions):
            return positions.sources
        recorded, names = positions.get(SOURCES_FILE), {*names, *positions}
    if recorded is not None:
        return tuple(msgspec.json.decode(recorded, type=list[str]))
    return (UNNAMED_SOURCE,) if names else ()
