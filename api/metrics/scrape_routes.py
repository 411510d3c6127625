"""The route of the metrics for Prometheus."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from ..access.identities import User
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import scrape

router = APIRouter(tags=["metrics"], route_class=GuardedRoute)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics", response_class=PlainTextResponse)
def show_metrics(context: ContextOf, user: User) -> PlainTextResponse:
    """Shows metrics in the text format of Prometheus.

    They are the metrics of the jobs in the token's scope; a token for all jobs also gets the metrics of this replica.
    """
    return PlainTextResponse(scrape.text_of(context, user.scope), media_type=CONTENT_TYPE)
