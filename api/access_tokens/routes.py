"""The routes of users' tokens."""

from typing import Annotated

from fastapi import APIRouter, Query

from keyscale.vocabulary import Role

from ..access.identities import Admin, User
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import tokens
from .schemas import NewTokenAnswer, TokenList, TokenRequest, UserAnswer

Roles = Annotated[list[Role], Query(max_length=len(Role), description="Only these roles.")]

router = APIRouter(tags=["tokens"], route_class=GuardedRoute)


@router.post("/tokens", status_code=201)
def create_token(context: ContextOf, user: Admin, request: TokenRequest) -> NewTokenAnswer:
    """Creates a token.

    Only this answer contains its value; it cannot be read again.
    """
    return tokens.create(context, user, request)


@router.get("/tokens")
def list_tokens(context: ContextOf, _: Admin, role: Roles = []) -> TokenList:  # noqa: B006 - FastAPI copies it
    """Lists all tokens without their values, the newest first."""
    return tokens.list_all(context, role)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(context: ContextOf, user: Admin, token_id: str) -> None:
    """Revokes a token, with its sessions and its subscriptions.

    Messages that wait are not sent.
    """
    tokens.revoke(context, user, token_id)


@router.get("/whoami")
def show_user(user: User) -> UserAnswer:
    """Shows the name, role and scope of the request's user."""
    return tokens.show_user(user)
