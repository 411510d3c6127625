"""The routes of secrets, without their values."""

from typing import Annotated

from fastapi import APIRouter, Path

from keyscale.jobs.protocol.specification import SECRET_NAME_PATTERN

from ..access.identities import Admin, User
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import secret_labels
from .schemas import SecretAnswer, SecretLabelsRequest, SecretList

router = APIRouter(prefix="/secrets", tags=["secrets"], route_class=GuardedRoute)


@router.get("")
def list_secrets(context: ContextOf, user: User) -> SecretList:
    """Lists the names and labels of the secrets in the user's scope.

    No answer has the value of a secret.
    """
    return secret_labels.list_all(context, user)


@router.put("/{secret}/labels")
def label_secret(
    context: ContextOf,
    user: Admin,
    secret: Annotated[str, Path(pattern=SECRET_NAME_PATTERN)],
    request: SecretLabelsRequest,
) -> SecretAnswer:
    """Replaces the labels of a secret.

    A user with a scope may give a job the secrets that the scope covers. A job keeps the secrets that it has.
    """
    return secret_labels.replace(context, user, secret, request)
