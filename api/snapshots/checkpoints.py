"""Checkpoint statistics, as in Flink's REST API.

They are counts, summary, history and details.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from keyscale.db.models import Checkpoint
from keyscale.db.repositories import attempts, checkpoints, revisions
from keyscale.vocabulary import CheckpointStatus

from ..control_plane.cursors import write_cursor
from ..errors import CheckpointNotFoundError
from ..job_spec import spec_of
from ..jobs.jobs import require_job, require_job_id
from .schemas.checkpoint import (
    CheckpointAnswer,
    CheckpointConfigAnswer,
    CheckpointDetailAnswer,
    CheckpointsAnswer,
    CountsAnswer,
    ExternalizationAnswer,
    LargeKeyGroup,
    LatestAnswer,
    OperatorAnswer,
    RangeAnswer,
    RestoredAnswer,
    StatisticsAnswer,
    SubtaskAnswer,
    SubtaskDurations,
    SubtasksDurationsSummary,
    SubtasksSummary,
    SummaryAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

    from sqlalchemy.orm import Session

    from keyscale.db.models import CheckpointSubtask

    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing

SUMMARY_CHECKPOINTS_MAX = 1000
_OWN_FIELDS = tuple(name for name in CheckpointAnswer.model_fields if name in Checkpoint.__table__.c)
_DONE = frozenset({CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED})


def show_statistics(
    context: Context, reference: str, listing: Listing, statuses: Collection[CheckpointStatus] = ()
) -> CheckpointsAnswer:
    """Shows counts, summary, latest and history.

    The history has the given statuses, or all; the rest is of all checkpoints.

    Raises:
        JobNotFoundError: The job does not exist.
        CursorInvalidError: The cursor belongs to another list.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        page = checkpoints.list_page(session, job_id, listing.page(int), statuses=statuses)
        counts = checkpoints.counts(session, job_id)
        done = checkpoints.sizes(session, job_id, _DONE, SUMMARY_CHECKPOINTS_MAX)
        latest = checkpoints.latest(session, job_id)
        restores, restored = _restores(session, job_id)
    return CheckpointsAnswer(
        counts=CountsAnswer(
            restored=restores,
            total=counts.total(),
            in_progress=counts[CheckpointStatus.IN_PROGRESS],
            completed=sum(counts[status] for status in _DONE),
            failed=counts[CheckpointStatus.FAILED],
        ),
        summary=SummaryAnswer(
            checkpointed_size=summarize(done.checkpointed_size),
            state_size=summarize(done.state_size),
            end_to_end_duration=summarize(done.end_to_end_duration),
            processed_data=summarize(done.processed_records),
            persisted_data=summarize(()),
        ),
        latest=LatestAnswer(
            completed=None if latest.completed is None else answer_of(latest.completed),
            savepoint=None if latest.savepoint is None else answer_of(latest.savepoint),
            failed=None if latest.failed is None else answer_of(latest.failed),
            restored=restored,
        ),
        history=[answer_of(checkpoint) for checkpoint in page.rows],
        next=write_cursor(page.next),
    )


def show_detail(context: Context, reference: str, checkpoint_id: int) -> CheckpointDetailAnswer:
    """Shows a checkpoint by operator and subtask.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job has no such checkpoint.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = checkpoints.find(session, job_id, checkpoint_id)
        if found is None:
            raise CheckpointNotFoundError(f"the job has no checkpoint {checkpoint_id}")
        subtasks = checkpoints.subtasks(session, job_id, checkpoint_id)
    operators = [
        _operator(uid, list(members), found.trigger_timestamp)
        for uid, members in groupby(subtasks, lambda subtask: subtask.operator_uid)
    ]
    return CheckpointDetailAnswer(**_fields(found), operators=operators)


def show_config(context: Context, reference: str) -> CheckpointConfigAnswer:
    """Shows how a job's checkpoints are taken.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        revision = revisions.current(session, job)
    settings = spec_of(revision).checkpoints
    return CheckpointConfigAnswer(
        interval=settings.interval_ms,
        timeout=settings.timeout_ms,
        min_pause=settings.min_pause_ms,
        externalization=ExternalizationAnswer(enabled=True, delete_on_cancellation=False),
        state_backend="rocksdb",
        checkpoint_storage=job.store_url,
        tolerable_failed_checkpoints=settings.tolerable_failed_checkpoints,
        retained_count=settings.retained_count,
        state_changelog_enabled=True,
    )


def quantile(ordered: Sequence[int], fraction: float) -> float:
    """Returns a quantile of ordered values.

    The quantile is interpolated between neighbours at (n + 1) * fraction, as in Flink.
    """
    if not ordered:
        return 0.0
    position = fraction * (len(ordered) + 1)
    if position < 1:
        return float(ordered[0])
    if position >= len(ordered):
        return float(ordered[-1])
    below = int(position)
    return ordered[below - 1] + (position - below) * (ordered[below] - ordered[below - 1])


def summarize(values: Sequence[int]) -> StatisticsAnswer:
    """Returns the distribution of values; all zeros without values."""
    ordered = sorted(values)
    return StatisticsAnswer(
        min=ordered[0] if ordered else 0,
        max=ordered[-1] if ordered else 0,
        avg=sum(ordered) // len(ordered) if ordered else 0,
        p50=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        p999=quantile(ordered, 0.999),
    )


def spread(values: Sequence[int]) -> RangeAnswer:
    """Returns minimum, maximum and mean; all zeros without values."""
    if not values:
        return RangeAnswer(min=0, max=0, avg=0)
    return RangeAnswer(min=min(values), max=max(values), avg=sum(values) // len(values))


def _restores(session: Session, job_id: str) -> tuple[int, RestoredAnswer | None]:
    """Returns how many restores the job has finished, and the latest restore."""
    found = attempts.restores(session, job_id)
    if found is None:
        return 0, None
    source = checkpoints.find_by_path(session, job_id, found.newest_from)
    return found.count, RestoredAnswer(
        id=source.checkpoint_id if source else 0,
        restore_timestamp=found.newest_at_ms,
        is_savepoint=source.is_savepoint if source else "/savepoints/" in found.newest_from,
        external_path=found.newest_from,
    )


def answer_of(checkpoint: Checkpoint) -> CheckpointAnswer:
    """Returns a checkpoint as the API shows it."""
    return CheckpointAnswer(**_fields(checkpoint))


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        **{name: getattr(checkpoint, name) for name in _OWN_FIELDS},
        "id": checkpoint.checkpoint_id,
        "processed_data": checkpoint.processed_records,
        "checkpoint_type": "SAVEPOINT" if checkpoint.is_savepoint else "CHECKPOINT",
        "discarded": checkpoint.status in {CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED},
    }


def _operator(uid: str, members: list[CheckpointSubtask], trigger_timestamp: int) -> OperatorAnswer:
    acknowledged = [member for member in members if member.status in _DONE]
    last_ack = max((member.ack_timestamp for member in members if member.ack_timestamp is not None), default=None)
    return OperatorAnswer(
        uid=uid,
        status=_operator_status(members),
        latest_ack_timestamp=last_ack,
        checkpointed_size=sum(member.checkpointed_size for member in members),
        state_size=operator_size(members),
        end_to_end_duration=0 if last_ack is None else max(0, last_ack - trigger_timestamp),
        entries=sum(member.entries for member in members),
        num_subtasks=len(members),
        num_acknowledged_subtasks=len(acknowledged),
        summary=SubtasksSummary(
            checkpointed_size=spread([member.checkpointed_size for member in acknowledged]),
            state_size=spread([member.state_size for member in acknowledged]),
            entries=spread([member.entries for member in acknowledged]),
            end_to_end_duration=spread([member.end_to_end_duration for member in acknowledged]),
            checkpoint_duration=SubtasksDurationsSummary(
                sync=spread([member.sync_duration for member in acknowledged]),
                async_=spread([member.async_duration for member in acknowledged]),
            ),
            start_delay=spread([member.start_delay for member in acknowledged]),
        ),
        subtasks=[_subtask(member) for member in members],
    )


def operator_size(members: Iterable[CheckpointSubtask]) -> int:
    """Returns the size of an operator's state; shared files count once.

    Older drivers do not report shared files. The size is then the sum of the subtasks' sizes.
    """
    return sum(member.state_size if member.distinct_size is None else member.distinct_size for member in members)


def _operator_status(members: list[CheckpointSubtask]) -> CheckpointStatus:
    statuses = {member.status for member in members}
    if CheckpointStatus.FAILED in statuses:
        return CheckpointStatus.FAILED
    return CheckpointStatus.COMPLETED if statuses <= _DONE else CheckpointStatus.IN_PROGRESS


def _subtask(member: CheckpointSubtask) -> SubtaskAnswer:
    return SubtaskAnswer(
        index=member.subtask,
        status=member.status,
        ack_timestamp=member.ack_timestamp,
        end_to_end_duration=member.end_to_end_duration,
        checkpointed_size=member.checkpointed_size,
        state_size=member.state_size,
        checkpoint=SubtaskDurations(sync=member.sync_duration, async_=member.async_duration),
        start_delay=member.start_delay,
        key_group_start=member.key_group_start,
        key_group_end=member.key_group_end,
        files=member.files,
        entries=member.entries,
        key_group_entries=member.key_group_entries,
        key_group_bytes=member.key_group_bytes,
        largest_key_groups=[LargeKeyGroup.model_validate(each) for each in member.largest_key_groups],
    )
