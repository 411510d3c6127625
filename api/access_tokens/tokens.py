"""Users' tokens: create, list and revoke them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories import events, subscriptions, tokens
from keyscale.units import counted
from keyscale.vocabulary import Role

from ..access.tokens import new_token, token_sha256
from ..database_clock import shared_now_ms
from ..errors import RequestInvalidError, TokenNameTakenError, TokenNotFoundError
from .schemas import NewTokenAnswer, ScopeModel, TokenAnswer, TokenList, UserAnswer, UserScopeModel

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from keyscale.db.models import Token

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas import TokenRequest


def create(context: Context, user: Principal, request: TokenRequest) -> NewTokenAnswer:
    """Creates a token.

    Only this answer ever shows its value.

    Raises:
        TokenNameTakenError: A valid token has this name.
        RequestInvalidError: An administrator's token has a scope.
    """
    scope = EVERYTHING if request.scope is None else JobScope(frozenset(request.scope.jobs), request.scope.labels)
    if request.scope is not None and scope.is_everything:
        raise RequestInvalidError("scope: name a job or a label, or leave the scope out")
    if request.role is Role.ADMIN and not scope.is_everything:
        raise RequestInvalidError("scope: an administrator can make tokens for every job, so a scope would not hold")
    value, at_ms = new_token(), shared_now_ms()
    with context.sessions.begin() as session:
        tokens.lock_names(session)
        if tokens.is_name_taken(session, request.name, at_ms=at_ms):
            raise TokenNameTakenError(f"a valid token called {request.name} already exists")
        token = tokens.add(
            session,
            token_id=uuid.uuid4().hex,
            sha256=token_sha256(value),
            name=request.name,
            role=request.role,
            scope=scope,
            at_ms=at_ms,
            expires_at_ms=None if request.lifetime_ms is None else at_ms + request.lifetime_ms,
            created_by=user.name,
        )
        events.record(
            session,
            job_id=None,
            at_ms=at_ms,
            kind="TOKEN_CREATED",
            actor=user.name,
            message=f"created the token {token.name} with the role {token.role}",
            token_id=token.id,
            job_names=token.job_names,
            job_labels=token.job_labels,
            expires_at_ms=token.expires_at_ms,
        )
    return NewTokenAnswer(**_fields(token), token=value)


def list_all(context: Context, roles: Collection[Role]) -> TokenList:
    """Lists tokens without their values.

    Without roles, every role is in the list.
    """
    with context.reads() as session:
        found = tokens.list_all(session, roles)
    return TokenList(tokens=[TokenAnswer(**_fields(token)) for token in found])


def revoke(context: Context, user: Principal, token_id: str) -> None:
    """Revokes a token, with its sessions and its subscriptions.

    The call is idempotent. A subscription would tell the token's holder about jobs for ever.

    Raises:
        TokenNotFoundError: No token has this id.
    """
    with context.sessions.begin() as session:
        token = tokens.find_by_id(session, token_id)
        if token is None:
            raise TokenNotFoundError("no token has this id")
        if token.revoked_at_ms is not None:
            return
        token.revoked_at_ms = shared_now_ms()
        ended = subscriptions.remove_of(session, token.id)
        events.record(
            session,
            job_id=None,
            at_ms=token.revoked_at_ms,
            kind="TOKEN_REVOKED",
            actor=user.name,
            message=f"revoked the token {token.name}"
            + (f" and deleted {counted(len(ended), 'subscription')}" if ended else ""),
            token_id=token.id,
            subscription_ids=ended,
        )


def show_user(user: Principal) -> UserAnswer:
    """Shows who sent a request."""
    scope = None
    if not user.scope.is_everything:
        scope = UserScopeModel(
            jobs=sorted(user.scope.jobs),
            labels=dict(user.scope.labels),
            any_labels=[f"{name}={value}" for name, value in sorted(user.scope.any_labels)],
        )
    return UserAnswer(id=user.id, name=user.name, role=user.role, scope=scope, expires_at_ms=user.expires_at_ms)


def _fields(token: Token) -> dict[str, Any]:
    shown = {name: getattr(token, name) for name in TokenAnswer.model_fields if name != "scope"}
    return {**shown, "scope": _scope(JobScope(frozenset(token.job_names), token.job_labels))}


def _scope(scope: JobScope) -> ScopeModel | None:
    return None if scope.is_everything else ScopeModel(jobs=sorted(scope.jobs), labels=dict(scope.labels))
