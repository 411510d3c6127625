"""The senders of requests: users with credentials, and drivers of attempts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from keyscale.db.repositories import artifacts, attempts, events, jobs, replicas
from keyscale.jobs.protocol.storable_text import is_storable
from keyscale.vocabulary import AttemptStage, Role

from ..errors import (
    ArtifactNotFoundError,
    JobNotFoundError,
    OperationNotFoundError,
    RateLimitedError,
    RoleTooLowError,
    TokenMissingError,
)
from .browser_sessions import SESSION_COOKIE, authenticate_cookie, require_own_page
from .forwarded_requests import authenticate_forwarded, looks_forwarded
from .openid import Issuer, looks_issued
from .principal import TOKEN_CHARACTERS_MAX, Principal, authenticate_token
from .tokens import attempt_token, token_sha256

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker
    from starlette.requests import HTTPConnection

    from keyscale.db.models import Attempt
    from keyscale.db.repositories.attempts import TokenHolder

    from .rates import Rates

_ATTEMPT_NUMBER = re.compile(r"[0-9]{1,12}")


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


class RequireRole:
    """A dependency of routes that returns the authorized user.

    The role is checked first, then whether the job, operation or artifact that the path names is in the user's scope.
    A resource outside the scope is answered like a missing resource.
    """

    def __init__(self, role: Role) -> None:
        self.role = role

    def __call__(self, request: Request) -> Principal:
        """Checks a request.

        Raises:
            TokenMissingError: The token is missing or wrong.
            TokenRevokedError: The token has been revoked.
            TokenExpiredError: The token has expired.
            IssuerUnavailableError: The issuer of the token does not answer.
            RoleMissingError: The settings give the issuer's user no role.
            OriginNotAllowedError: Another site sent the cookie.
            RateLimitedError: The user sends too many requests.
            RoleTooLowError: The token's role does not suffice.
            JobNotFoundError: The job of the path is not in the token's scope.
            OperationNotFoundError: The operation of the path is not in the token's scope.
            ArtifactNotFoundError: The artifact of the path is not in the token's scope.
        """
        known: Principal | None = getattr(request.state, "user", None)
        if known is not None:  # checked already, before a large body was read
            return known
        rates: Rates = request.app.state.context.rates
        with _reads(request)() as session:
            user = _authenticate(session, request)
            _name_origin(user.name, user.id)
            if (wait_s := rates.per_user.take(user.id)) > 0:
                raise RateLimitedError(f"{user.name} sends too many requests", wait_s)
            if not user.may_act_as(self.role):
                raise RoleTooLowError(f"this needs the role {self.role}, and {user.name} has the role {user.role}")
            if not user.scope.is_everything:
                request.state.is_out_of_scope = True
                _require_in_scope(session, user, request.path_params)
                request.state.is_out_of_scope = False
        request.state.user = user
        return user


def require_driver(request: Request) -> DriverIdentity:
    """Returns the attempt of the driver that sends the request.

    Raises:
        TokenMissingError: The token is missing or does not belong to an attempt.
        RateLimitedError: The reports of its job have taken too much time.
    """
    token = bearer_token(request)
    if token and len(token) <= TOKEN_CHARACTERS_MAX:
        with _reads(request)() as session:
            found = attempts.find_by_token(session, token_sha256(token))
        if found is not None:
            _name_origin(f"attempt {found.number}", f"{found.job_id}/{found.number}")
            rates: Rates = request.app.state.context.rates
            if (wait_s := rates.reports_ms.wait_s(found.job_id)) > 0:
                raise RateLimitedError("the reports of this job take too much of the control plane's time", wait_s)
            driver = request.state.driver = DriverIdentity(
                found.job_id, found.number, found.stage is AttemptStage.ENDED
            )
            return driver
    raise TokenMissingError("the attempt's token is missing or not valid")


def require_known_attempt(request: Request) -> str:
    """Returns the hash of the token of an attempt.

    The query names the attempt as `<job>:<number>`; by default it is the sender's attempt.

    Raises:
        TokenMissingError: The query names no attempt.
    """
    job_id, _, number = request.query_params.get("attempt", "").partition(":")
    with _reads(request)() as session:
        if job_id and is_storable(job_id) and _ATTEMPT_NUMBER.fullmatch(number):
            found: Attempt | TokenHolder | None = attempts.find(session, job_id, int(number))
        else:
            token = bearer_token(request)[:TOKEN_CHARACTERS_MAX]
            found = attempts.find_by_token(session, token_sha256(token)) if token else None
    if found is None or found.token_sha256 is None:
        raise TokenMissingError("the attempt is not known")
    return found.token_sha256


def require_lost_attempt(request: Request) -> str:
    """Returns the hash of the token of an unknown attempt.

    The query names the attempt as `<job>:<number>`, and the salt of the token.

    Raises:
        TokenMissingError: The query names no attempt, or the database knows the attempt.
    """
    given, salt = request.query_params.get("attempt", ""), request.query_params.get("salt", "")
    job_id, _, number = given.partition(":")
    if not (job_id and is_storable(given) and is_storable(salt) and _ATTEMPT_NUMBER.fullmatch(number)):
        raise TokenMissingError("the query names no attempt")
    with _reads(request)() as session:
        token = token_sha256(attempt_token(replicas.shared_key(session), given, salt))
        found = attempts.find(session, job_id, int(number))
    if found is not None and found.token_sha256 in {None, token}:  # without a token: it is about to be launched
        raise TokenMissingError("the attempt is known")
    return token


def bearer_token(request: HTTPConnection) -> str:
    """Returns the token of the Authorization header, or an empty string."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _authenticate(session: Session, request: Request) -> Principal:
    """Returns the user of the Authorization header, else of the cookie.

    Another replica's header names the user.

    A page's cookie changes something only together with a header that forms of other sites cannot send.
    """
    if looks_forwarded(request):
        return authenticate_forwarded(
            request, replicas.shared_key(session), request.app.state.context.announcer.replica_id
        )
    if bearer := bearer_token(request):
        issuer: Issuer | None = request.app.state.context.issuer
        if issuer is not None and looks_issued(bearer):
            return issuer.authenticate(bearer)
        return authenticate_token(session, bearer)
    user = authenticate_cookie(session, request.cookies.get(SESSION_COOKIE, ""))
    if request.method not in {"GET", "HEAD"}:
        require_own_page(request)
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


def _name_origin(name: str, user_id: str) -> None:
    if (origin := events.ORIGIN.get()) is not None:
        origin.actor, origin.actor_id = name, user_id


def _reads(request: Request) -> sessionmaker[Session]:
    reads: sessionmaker[Session] = request.app.state.context.reads
    return reads


User = Annotated[Principal, Depends(RequireRole(Role.VIEWER))]
Operator = Annotated[Principal, Depends(RequireRole(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(RequireRole(Role.ADMIN))]
ProvableAttempt = Annotated[str, Depends(require_known_attempt)]
LostAttempt = Annotated[str, Depends(require_lost_attempt)]
Driver = Annotated[DriverIdentity, Depends(require_driver)]
