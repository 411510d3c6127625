"""The route of the control plane's replicas."""

from fastapi import APIRouter

from keyscale.api.access.identities import User
from keyscale.api.routers.dependencies import Control
from keyscale.api.schemas.replica import ReplicaList
from keyscale.api.services import replicas

router = APIRouter(tags=["replicas"])


@router.get("/replicas")
def list_replicas(control: Control, _: User) -> ReplicaList:
    """Lists all control planes on this database: which one leads, since when, and when each was last heard of."""
    return replicas.list_all(control)
