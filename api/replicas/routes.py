"""The route of the control plane's replicas."""

from fastapi import APIRouter

from ..access.identities import User
from ..control_plane.dependencies import ContextOf
from . import replicas
from .schemas import ReplicaList

router = APIRouter(tags=["replicas"])


@router.get("/replicas")
def list_replicas(context: ContextOf, _: User) -> ReplicaList:
    """Lists all control planes on this database.

    Shows which replica leads, since when, and each replica's last sign of life.
    """
    return replicas.list_all(context)
