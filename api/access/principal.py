"""Users, with their rights and their scope of jobs."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories import tokens
from keyscale.vocabulary import Role

from ..database_clock import shared_now_ms
from ..errors import TokenExpiredError, TokenMissingError, TokenRevokedError
from .tokens import token_sha256

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Token

TOKEN_CHARACTERS_MAX = 512
_RANKS = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


@dataclass(frozen=True, slots=True)
class Principal:
    """A user.

    Attributes:
        id: Id of the user's token; for a user of an OpenID Connect issuer, the issuer and its id of the user.
        name: The token's name, or the issuer's name of the user, for people.
        role: What the user may do.
        scope: The jobs that the user may do it to.
        expires_at_ms: When the token or session expires; None: never.
    """

    id: str
    name: str
    role: Role
    scope: JobScope = EVERYTHING
    expires_at_ms: int | None = None

    def may_act_as(self, role: Role) -> bool:
        """Returns whether the user has at least the rights of a role."""
        return _RANKS[self.role] >= _RANKS[role]


def authenticate_token(session: Session, value: str) -> Principal:
    """Returns the holder of a user's token.

    Raises:
        TokenMissingError: The token does not exist.
        TokenRevokedError: The token has been revoked.
        TokenExpiredError: The token has expired.
    """
    if not value or len(value) > TOKEN_CHARACTERS_MAX:
        raise TokenMissingError("the token is missing or not valid")
    digest = token_sha256(value)
    found = tokens.find(session, digest)
    # The look-up compares hashes of the whole token, so its timing reveals nothing. This makes it explicit.
    if found is None or not hmac.compare_digest(found.sha256, digest):
        raise TokenMissingError("the token is missing or not valid")
    return holder_of(found)


def holder_of(token: Token) -> Principal:
    """Returns the holder of a stored token.

    Raises:
        TokenRevokedError: It has been revoked.
        TokenExpiredError: It has expired.
    """
    if token.revoked_at_ms is not None:
        raise TokenRevokedError(f"the token {token.name} was revoked")
    if token.expires_at_ms is not None and token.expires_at_ms <= shared_now_ms():
        raise TokenExpiredError(f"the token {token.name} has expired")
    scope = JobScope(frozenset(token.job_names), token.job_labels)
    return Principal(token.id, token.name, token.role, scope, token.expires_at_ms)
