"""The route of all events."""

from fastapi import APIRouter

from ..access.identities import User
from ..schemas.job import EventList
from ..services import jobs
from .dependencies import Control, ListingOf
from .guarded_route import GuardedRoute

router = APIRouter(prefix="/events", tags=["events"], route_class=GuardedRoute)


@router.get("")
def list_all_events(control: Control, user: User, listing: ListingOf) -> EventList:
    """Lists the events in the user's scope, newest first.

    Events concern jobs and artifacts. Administrators also see sign-ins, refused requests and changes of tokens, and the
    addresses of requests.
    """
    return jobs.list_events(control, user, None, listing)
