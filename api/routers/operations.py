from fastapi import APIRouter

from api.routers.dependencies import Control
from api.schemas.operation import OperationAnswer
from api.security import User
from api.services import operations

router = APIRouter(prefix="/operations", tags=["operations"])


@router.get("/{operation_id}")
def show_operation(control: Control, _: User, operation_id: str) -> OperationAnswer:
    """Shows a checkpoint, savepoint, stop or rescale by its operation id. Ids survive restarts of everything."""
    return operations.show(control, operation_id)
