from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.routers.dependencies import Control
from api.services import health

router = APIRouter(tags=["health"])


@router.get("/health", responses={503: {"description": "A part does not work; `code` says which."}})
def show_health(control: Control) -> JSONResponse:
    """Says whether the database, the object store and the reconciler work. Needs no token."""
    return health.show(control)
