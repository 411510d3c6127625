"""The route of operations."""

from fastapi import APIRouter

from keyscale.api.access.identities import User
from keyscale.api.routers.dependencies import Control
from keyscale.api.schemas.operation import OperationAnswer
from keyscale.api.services import operations

router = APIRouter(prefix="/operations", tags=["operations"])


@router.get("/{operation_id}")
def show_operation(control: Control, _: User, operation_id: str) -> OperationAnswer:
    """Shows a checkpoint, savepoint, stop, rescale or other change by its operation id. Ids survive all restarts."""
    return operations.show(control, operation_id)
