"""The route of all events."""

from fastapi import APIRouter

from keyscale.api.access.identities import User
from keyscale.api.routers.dependencies import Control, Limit
from keyscale.api.schemas.job import EventList
from keyscale.api.services import jobs

router = APIRouter(prefix="/events", tags=["events"])


@router.get("")
def list_all_events(control: Control, _: User, limit: Limit = 200) -> EventList:
    """Lists what has happened to all jobs and artifacts, the newest first."""
    return jobs.list_events(control, None, limit)
