"""The senders of requests: users with a token or a session, and drivers of attempts."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from keyscale.api.access.tokens import token_sha256
from keyscale.api.errors import (
    ArtifactNotFoundError,
    JobNotFoundError,
    OperationNotFoundError,
    OriginNotAllowedError,
    RoleTooLowError,
    TokenExpiredError,
    TokenMissingError,
    TokenRevokedError,
)
from keyscale.clock import now_ms
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories import artifacts, attempts, jobs, tokens
from keyscale.db.statuses import AttemptStage, Role

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker
    from starlette.requests import HTTPConnection

    from keyscale.db.models import Token

SESSION_COOKIE = "keyscale_session"
_TOKEN_CHARACTERS_MAX = 512
_RANKS = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


@dataclass(frozen=True, slots=True)
class Principal:
    """A user: the holder of a token.

    Attributes:
        id: Id of the token.
        name: The token's name, for people.
        role: What the user may do.
        scope: The jobs that the user may do it to.
        expires_at_ms: When the token expires; None: never.
    """

    id: str
    name: str
    role: Role
    scope: JobScope = EVERYTHING
    expires_at_ms: int | None = None

    def may_act_as(self, role: Role) -> bool:
        """Whether the user has at least the rights of a role."""
        return _RANKS[self.role] >= _RANKS[role]


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """The driver of one attempt.

    Attributes:
        job_id: The attempt's job.
        attempt: The attempt's number.
        over: Whether the attempt has ended.
    """

    job_id: str
    attempt: int
    over: bool


def authenticate_token(session: Session, token: str) -> Principal:
    """Returns the holder of a user's token.

    Raises:
        TokenMissingError: There is no such token.
        TokenRevokedError: It has been revoked.
        TokenExpiredError: It has expired.
    """
    if not token or len(token) > _TOKEN_CHARACTERS_MAX:
        raise TokenMissingError("the token is missing or not valid")
    digest = token_sha256(token)
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
    if token.expires_at_ms is not None and token.expires_at_ms <= now_ms():
        raise TokenExpiredError(f"the token {token.name} has expired")
    scope = JobScope(frozenset(token.job_names), token.job_labels)
    return Principal(token.id, token.name, token.role, scope, token.expires_at_ms)


class RequireRole:
    """A dependency of routes: returns the user who sends the request, if the user may send it.

    The role is checked first, then whether the job, operation or artifact that the path names is in the user's scope.
    One that is not is answered like one that does not exist.
    """

    def __init__(self, role: Role) -> None:
        self.role = role

    def __call__(self, request: Request) -> Principal:
        """Checks a request.

        Raises:
            TokenMissingError: The token is missing or wrong.
            TokenRevokedError: It has been revoked.
            TokenExpiredError: It has expired.
            OriginNotAllowedError: Another site sent the cookie.
            RoleTooLowError: The token's role does not suffice.
            JobNotFoundError: The job of the path is not in the token's scope.
            OperationNotFoundError: The operation of the path is not in the token's scope.
            ArtifactNotFoundError: The artifact of the path is not in the token's scope.
        """
        with _sessions(request)() as session:
            user = _authenticate(session, request)
            if not user.may_act_as(self.role):
                raise RoleTooLowError(f"this needs the role {self.role}, and {user.name} has the role {user.role}")
            if not user.scope.is_everything:
                _require_in_scope(session, user, request.path_params)
        return user


def require_driver(request: Request) -> DriverIdentity:
    """Returns the attempt whose driver sends the request.

    Raises:
        TokenMissingError: The token is missing or not that of an attempt.
    """
    token = bearer_token(request)
    if token and len(token) <= _TOKEN_CHARACTERS_MAX:
        with _sessions(request)() as session:
            found = attempts.find_by_token(session, token_sha256(token))
        if found is not None:
            return DriverIdentity(found.job_id, found.number, found.stage is AttemptStage.ENDED)
    raise TokenMissingError("the attempt's token is missing or not valid")


def bearer_token(request: HTTPConnection) -> str:
    """Returns the token of the Authorization header, or an empty string."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _authenticate(session: Session, request: Request) -> Principal:
    """Returns the user of the Authorization header, else of the cookie.

    A page's cookie changes something only together with a header that forms of other sites cannot send.
    """
    if bearer := bearer_token(request):
        return authenticate_token(session, bearer)
    user = authenticate_token(session, request.cookies.get(SESSION_COOKIE, ""))
    if request.method not in {"GET", "HEAD"} and not _is_own_page(request):
        raise OriginNotAllowedError("a request with the session's cookie needs the header X-Requested-With: keyscale")
    return user


def _require_in_scope(session: Session, user: Principal, named: dict[str, str]) -> None:
    if (job := named.get("job_id")) is not None and jobs.find(session, job, scope=user.scope) is None:
        raise JobNotFoundError("no job has this id or name")
    if (operation := named.get("operation_id")) is not None:
        job_id = jobs.id_of_operation(session, operation)
        if job_id is None or jobs.find(session, job_id, scope=user.scope) is None:
            raise OperationNotFoundError("no operation has this id")
    if (artifact := named.get("artifact_id")) is not None and not artifacts.is_visible(
        session, artifact, scope=user.scope, user_id=user.id
    ):
        raise ArtifactNotFoundError("no artifact has this id")


def _sessions(request: Request) -> sessionmaker[Session]:
    sessions: sessionmaker[Session] = request.app.state.context.sessions
    return sessions


def _is_own_page(request: Request) -> bool:
    if request.headers.get("x-requested-with") != "keyscale":
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


User = Annotated[Principal, Depends(RequireRole(Role.VIEWER))]
Operator = Annotated[Principal, Depends(RequireRole(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(RequireRole(Role.ADMIN))]
Driver = Annotated[DriverIdentity, Depends(require_driver)]
