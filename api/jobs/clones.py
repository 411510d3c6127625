"""Clones: new jobs with the specification and the state of another job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import revisions

from ..job_spec import changed, spec_of
from .jobs import new_job, require_job, require_name, store_new
from .restore_sources import Restorer, find_source
from .schemas.restore import RestoreSource

if TYPE_CHECKING:
    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas.job import CloneRequest, JobAnswer


def clone(context: Context, user: Principal, reference: str, request: CloneRequest) -> JobAnswer:
    """Creates a job with another job's specification and state.

    The other job is unchanged, and may run.

    Without `restore_from` the clone begins with the latest completed checkpoint or savepoint. The clone has the
    snapshot's max parallelism and hash, which the other job may not have.

    Raises:
        JobNotFoundError: The job does not exist.
        RestoreSourceError: The job has no such checkpoint or savepoint.
        KeyscaleError: As when a job is created.
    """
    with context.reads() as session:
        original = require_job(session, reference)
        present = spec_of(revisions.current(session, original))
    labels = original.labels if request.labels is None else request.labels
    require_name(user, request.name, labels)
    source = request.restore_from or RestoreSource(latest=True)
    if source.job is None and source.location is None:
        source = source.model_copy(update={"job": original.id})
    context.store.require_usable(original.store_url)
    wanted = request.model_copy(update={"restore_from": source})
    found = find_source(context, user, wanted, Restorer(None, original.store_url, None, None))
    assert found is not None  # noqa: S101 - a clone always has a source
    of_snapshot = {"max_parallelism": found.max_parallelism, "hash_id": found.hash_id}
    spec = changed(present, request.spec).model_copy(update=of_snapshot)
    job = new_job(request.name, spec, labels, original.store_url)
    message = request.message or f"cloned from {original.name}"
    answer = store_new(context, user, job, spec, wanted, found, cloned=present, message=message, starts=request.start)
    if request.start:
        context.wakeup.ring()
    return answer
