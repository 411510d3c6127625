"""Revisions: list, show and compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.db.repositories import artifacts, operations, revisions
from keyscale.jobs.protocol.redaction import redact_named
from keyscale.jobs.protocol.specification import differences

from ..control_plane.cursors import write_cursor
from ..job_spec import spec_of
from ..jobs.jobs import require_job
from ..operations.operations import operation_answer
from ..operations.plans import require_revision
from .schemas import DifferenceAnswer, RevisionAnswer, RevisionDiffAnswer, RevisionList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.models import Job, Revision

    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing

_PARAMETER = "parameters."


def list_of(context: Context, reference: str, listing: Listing, created_by: str | None) -> RevisionList:
    """Lists a job's revisions.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        found = revisions.list_page(session, job.id, listing.page(int), created_by=created_by)
        shown = _revision_answers(session, job, found.rows)
    return RevisionList(revisions=shown, next=write_cursor(found.next))


def show(context: Context, reference: str, number: int) -> RevisionAnswer:
    """Shows a revision.

    Raises:
        JobNotFoundError: The job does not exist.
        RevisionNotFoundError: The job has no such revision.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        [answer] = _revision_answers(session, job, [require_revision(session, job, number)])
    return answer


def compare(context: Context, reference: str, before: int, after: int) -> RevisionDiffAnswer:
    """Compares two revisions of a job.

    Raises:
        JobNotFoundError: The job does not exist.
        RevisionNotFoundError: The job has no such revision.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        first, second = require_revision(session, job, before), require_revision(session, job, after)
        found = differences(spec_of(first), spec_of(second))
    shown = [
        DifferenceAnswer(path=name, before=_masked(name, was), after=_masked(name, is_))
        for name, was, is_ in ((each.path, each.before, each.after) for each in found)
    ]
    return RevisionDiffAnswer(before=before, after=after, differences=shown)


def _revision_answers(session: Session, job: Job, found: Sequence[Revision]) -> list[RevisionAnswer]:
    programs = artifacts.find_all(session, {revision.artifact_id for revision in found})
    last = operations.last_to(session, job.id, [revision.number for revision in found])
    answers = []
    for revision in found:
        artifact, change = programs.get(revision.artifact_id), last.get(revision.number)
        shown = {name: getattr(revision, name) for name in RevisionAnswer.model_fields if hasattr(revision, name)}
        answers.append(
            RevisionAnswer.model_validate(
                {
                    **shown,
                    "is_current": revision.number == job.revision,
                    "artifact_name": artifact.name if artifact else "",
                    "artifact_version": artifact.version if artifact else 0,
                    "operation": None if change is None else operation_answer(change),
                }
            )
        )
    return answers


def _masked(path: str, value: Any) -> Any:
    if not path.startswith(_PARAMETER) or not isinstance(value, str):
        return value
    return redact_named(path.removeprefix(_PARAMETER), value)
