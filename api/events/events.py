"""Lists the events of a job, or of a user's scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import events, jobs
from keyscale.vocabulary import Role

from ..control_plane.cursors import write_cursor
from ..jobs.jobs import require_job_id
from .schemas import EventAnswer, EventList

if TYPE_CHECKING:
    from keyscale.db.repositories.events import EventFilter

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing


def list_job_events(
    context: Context, user: Principal, reference: str, listing: Listing, chosen: EventFilter
) -> EventList:
    """Lists the events of a job.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
    return list_events(context, user, job_id, listing, chosen)


def list_events(
    context: Context, user: Principal, reference: str | None, listing: Listing, chosen: EventFilter
) -> EventList:
    """Lists the events of a job or of the user's scope.

    Args:
        context: The control plane.
        user: The user.
        reference: The job, which may be deleted; None for the whole scope.
        listing: The part of the list.
        chosen: The events of the list.
    """
    with context.reads() as session:
        job_id = None if reference is None else jobs.find_id(session, reference) or reference
        is_admin = user.may_act_as(Role.ADMIN)
        page = listing.page(int)
        found = events.list_page(session, job_id, page, scope=user.scope, with_access=is_admin, chosen=chosen)
    hidden = {} if is_admin else {"address": None}
    shown = [EventAnswer.model_validate(event).model_copy(update=hidden) for event in found.rows]
    return EventList(events=shown, next=write_cursor(found.next))
