"""The route of a job's support bundle."""

from fastapi import APIRouter, Response

from ..access.identities import User
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import bundle

router = APIRouter(prefix="/jobs/{job_id}/bundle", tags=["jobs"], route_class=GuardedRoute)


@router.get("", response_class=Response, responses={200: {"content": {"application/zip": {}}}})
def download_bundle(context: ContextOf, user: User, job_id: str) -> Response:
    """Downloads the support bundle of a job, as a zip.

    It has the job with its specification, health and metrics, its attempts, operations, checkpoints, exceptions and
    events, six hours of series, the stacks of a running job, the end of the driver's log, and versions. Secrets are
    masked.
    """
    found = bundle.bundle_of(context, user, job_id)
    disposition = {"Content-Disposition": f'attachment; filename="{found.filename}"'}
    return Response(found.content, media_type="application/zip", headers=disposition)
