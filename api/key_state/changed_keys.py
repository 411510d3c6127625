"""Changes the state of a stopped job's keys, in a new savepoint."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, checkpoints, events
from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint
from keyscale.state.doors.paths import split_location
from keyscale.vocabulary import CheckpointStatus

from ..control_plane.state_process import read_state
from ..errors import CheckpointNotFoundError, JobStatusConflictError, SavepointIdTakenError
from ..jobs.jobs import require_job
from ..lifecycle.job_transaction import JobTransaction
from ..lifecycle.requests import require_state_changeable
from .schemas import ChangedKeyAnswer, ChangedKeysAnswer, KeyChangesRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.models import Job

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas import KeyChangeItem, KeyChangeRequest

_FETCHED_BYTES_MAX = 2 << 30


def change(
    context: Context, user: Principal, reference: str, request: KeyChangeRequest | KeyChangesRequest
) -> ChangedKeyAnswer | ChangedKeysAnswer:
    """Writes a savepoint in which the state of keys is changed.

    The savepoint is derived from the job's latest checkpoint or savepoint, or from a chosen one. The job's history does
    not change until the job starts from the savepoint. A repeated request with the same id gets the first answer.

    Args:
        context: The control plane.
        user: The user.
        reference: The id or name of the job.
        request: The changes.

    Raises:
        JobNotFoundError: The job does not exist.
        JobStatusConflictError: The job runs, or has been started meanwhile.
        CheckpointNotFoundError: The job has no completed checkpoint or savepoint, or not the chosen one.
        SavepointIdTakenError: The job has a savepoint of the id, with other changes.
        StateChangeError: The operator, state, key or value does not fit.
        StateReadTimeoutError: The change takes too long.
        StoreUnavailableError: The object store does not answer.
        TooManyInFlightError: Too many reads are in progress.
    """
    savepoint_id = request.id or f"changed-{uuid.uuid4().hex[:12]}"
    is_list = isinstance(request, KeyChangesRequest)
    changes = request.changes if isinstance(request, KeyChangesRequest) else [request]
    with context.sessions.begin() as session:
        job = require_job(session, reference)
        asked: dict[str, Any] = {
            "changes": [each.model_dump(exclude={"id", "checkpoint_id"}) for each in changes],
            "derived_from": request.checkpoint_id,
            "store_url": job.store_url,
            "job_id": job.id,
            "savepoint_id": savepoint_id,
        }
        found = checkpoints.find_savepoint(session, job.id, savepoint_id)
        taken = None if found is None else found.checkpoint_id
    if taken is not None:
        return _repeated(context, user, asked, taken, is_list=is_list)
    with context.state_reads.place(user.id):
        pass  # a request that finds no place is refused before it is recorded
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        _require_changeable(session, job, savepoint_id)
        attempt = _newest_attempt(session, job)
        number = _number_of(session, job, savepoint_id, attempt)
        source = _source(session, job, request.checkpoint_id)
        events.record(
            session,
            job_id=job.id,
            at_ms=now_ms(),
            kind=events.STATE_CHANGE_REQUESTED,
            actor=user.name,
            message=f"savepoint {savepoint_id} {_summary(changes)}",
            savepoint_id=savepoint_id,
            checkpoint_id=number,
            derived_from=source,
            attempt=attempt,
        )
    place = {
        "checkpoint_id": number,
        "manifest_path": split_location(source)[1],
        "fetched_bytes_max": _FETCHED_BYTES_MAX,
    }
    try:
        changed = read_state(context, user, "change", asked | place)
    except KeyscaleError:
        # A request of the same id at the same time may have written the savepoint.
        with context.reads() as session:
            found = checkpoints.find_savepoint(session, asked["job_id"], savepoint_id)
            taken = None if found is None else found.checkpoint_id
        if taken is None:
            raise
        return _repeated(context, user, asked, taken, is_list=is_list)
    failpoint("changed-savepoint-published")
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        listed = checkpoints.find(session, job.id, number)
        if listed is not None and listed.savepoint_id == savepoint_id:  # the leader has found it in the store
            return _answer(changed, savepoint_id, number, is_list=is_list)
        _require_changeable(session, job, savepoint_id)
        if _newest_attempt(session, job) != attempt:
            raise JobStatusConflictError("the job was started meanwhile; its state is no longer what was changed")
        if listed is not None:  # an earlier driver has published it, and was not heard
            raise JobStatusConflictError(f"snapshot {number} of the job was found meanwhile; repeat with another id")
        checkpoints.store_changed(
            session,
            job.id,
            savepoint_id,
            checkpoint_id=number,
            location=changed["location"],
            batch_id=changed["batch_id"],
            state_size=changed["state_size_bytes"],
            created_at_ms=changed["created_at_ms"],
        )
        events.record(
            session,
            job_id=job.id,
            at_ms=now_ms(),
            kind="STATE_CHANGED",
            actor=user.name,
            message=f"savepoint {savepoint_id} {_summary(changes)}",
            checkpoint_id=number,
            location=changed["location"],
            derived_from=source,
            rows_before=sum(len(each["before"]) for each in changed["changes"]),
            rows_after=sum(len(each["after"]) for each in changed["changes"]),
        )
    return _answer(changed, savepoint_id, number, is_list=is_list)


def _repeated(
    context: Context, user: Principal, asked: dict[str, Any], number: int, *, is_list: bool
) -> ChangedKeyAnswer | ChangedKeysAnswer:
    """Returns the answer to an earlier request with equal changes."""
    first = read_state(context, user, "repeated-change", asked)["answer"]
    if first is None:
        raise SavepointIdTakenError(f"the job has a savepoint {asked['savepoint_id']}")
    return _answer(first, asked["savepoint_id"], number, is_list=is_list)


def _answer(
    changed: dict[str, Any], savepoint_id: str, number: int, *, is_list: bool
) -> ChangedKeyAnswer | ChangedKeysAnswer:
    common = {"savepoint_id": savepoint_id, "checkpoint_id": number, "location": changed["location"]}
    if is_list:
        return ChangedKeysAnswer.model_validate({**common, "changes": changed["changes"]})
    return ChangedKeyAnswer.model_validate({**common, **changed["changes"][0]})


def _summary(changes: Sequence[KeyChangeItem]) -> str:
    """Returns what the changes do, without keys and values."""
    if len(changes) == 1:
        (only,) = changes
        return f"{'deletes' if only.deletes else 'sets'} state {only.state} of operator {only.operator} for one key"
    deleted = sum(each.deletes for each in changes)
    places = sorted({f"{each.operator}.{each.state}" for each in changes})
    shown = ", ".join(places[:5]) + (", ..." if len(places) > 5 else "")
    return f"has {len(changes) - deleted} set and {deleted} deleted entries of {shown}"


def _require_changeable(session: Session, job: Job, savepoint_id: str) -> None:
    require_state_changeable(session, job)
    if checkpoints.find_savepoint(session, job.id, savepoint_id) is not None:
        raise SavepointIdTakenError(f"the job has a savepoint {savepoint_id}")


def _newest_attempt(session: Session, job: Job) -> int:
    """Returns the number of the newest attempt.

    Each start makes a new attempt.
    """
    return attempts.next_number(session, job.id) - 1


def _number_of(session: Session, job: Job, savepoint_id: str, attempt: int) -> int:
    """Returns the number of the new savepoint among the job's checkpoints.

    A request has its number from its event on, so that requests at the same time have different numbers, and a
    repeated request has the number of the first one.
    """
    requested = [event.details for event in events.requested_state_changes(session, job.id)]
    numbers = [
        each["checkpoint_id"]
        for each in requested
        if each["savepoint_id"] == savepoint_id and each.get("attempt") == attempt
    ]
    if numbers and checkpoints.find(session, job.id, numbers[0]) is None:
        return int(numbers[0])
    return int(max([checkpoints.next_id(session, job.id), *(each["checkpoint_id"] + 1 for each in requested)]))


def _source(session: Session, job: Job, checkpoint_id: int | None) -> str:
    """Returns the location of the snapshot to derive from."""
    if checkpoint_id is None:
        found = JobTransaction(session, job).latest_completed()
    else:
        found = checkpoints.find(session, job.id, checkpoint_id)
    if found is None or found.status is not CheckpointStatus.COMPLETED or found.external_path is None:
        raise CheckpointNotFoundError("the job has no such completed checkpoint or savepoint")
    return found.external_path
