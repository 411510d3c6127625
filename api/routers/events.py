from fastapi import APIRouter

from api.routers.dependencies import Control, Limit
from api.schemas.job import EventList
from api.security import User
from api.services import job_views

router = APIRouter(prefix="/events", tags=["events"])


@router.get("")
def list_all_events(control: Control, _: User, limit: Limit = 200) -> EventList:
    """Lists what has happened to all jobs and artifacts, the newest first."""
    return job_views.list_events(control, None, limit)
