"""The route of the control plane's replicas."""

from fastapi import APIRouter

from ..access.identities import User
from ..schemas.replica import ReplicaList
from ..services import replicas
from .dependencies import Control

router = APIRouter(tags=["replicas"])


@router.get("/replicas")
def list_replicas(control: Control, _: User) -> ReplicaList:
    """Lists all control planes on this database.

    Shows which replica leads, since when, and each replica's last sign of life.
    """
    return replicas.list_all(control)
