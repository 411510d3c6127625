"""The route of operations."""

from fastapi import APIRouter

from ..access.identities import User
from ..schemas.operation import OperationAnswer
from ..services import operations
from .dependencies import Control

router = APIRouter(prefix="/operations", tags=["operations"])


@router.get("/{operation_id}")
def show_operation(control: Control, _: User, operation_id: str) -> OperationAnswer:
    """Shows an operation by its id.

    It is a checkpoint, savepoint, stop, rescale or other change.

    Ids survive all restarts.
    """
    return operations.show(control, operation_id)
