"""Requests that a replica forwards for a user.

A replica never sends a user's credential. It sends a token of its own, which names the user, holds for one request to
one replica, and ends after seconds. The token is JSON and its HMAC-SHA256 under the key of the replicas' database.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from keyscale.db.job_scope import JobScope
from keyscale.vocabulary import Role

from ..database_clock import shared_now_ms
from ..errors import TokenMissingError
from .principal import Principal

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

SCHEME = "Keyscale-Replica"
LIFETIME_MS = 10_000
_TOKEN_CHARACTERS_MAX = 32 << 10
_PURPOSE = b"forwarded request\n"  # the key also makes proofs


class ForwardedRequest(BaseModel):
    """One request, in the name of one user.

    Attributes:
        version: The version of this format.
        target: The id of the replica that answers it.
        method: Its method.
        path: Its path with the query.
        body_sha256: The hash of its body.
        user_id: The user's id.
        user_name: The user's name.
        role: What the user may do.
        job_names: The names and ids of jobs in the user's scope.
        job_labels: The labels of jobs in the user's scope.
        any_labels: Labels of which a job in the user's scope has one.
        expires_at_ms: When it ends, by the database's clock.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    target: str
    method: str
    path: str
    body_sha256: str
    user_id: str
    user_name: str
    role: Role
    job_names: list[str]
    job_labels: dict[str, str]
    any_labels: list[tuple[str, str]]
    expires_at_ms: int

    @classmethod
    def of(cls, user: Principal, *, target: str, method: str, path: str, body: bytes = b"") -> ForwardedRequest:
        """Returns a user's request to a replica, valid for seconds."""
        return cls(
            target=target,
            method=method,
            path=path,
            body_sha256=hashlib.sha256(body).hexdigest(),
            user_id=user.id,
            user_name=user.name,
            role=user.role,
            job_names=sorted(user.scope.jobs),
            job_labels=dict(user.scope.labels),
            any_labels=sorted(user.scope.any_labels),
            expires_at_ms=shared_now_ms() + LIFETIME_MS,
        )

    @property
    def user(self) -> Principal:
        """The user in whose name it is sent."""
        scope = JobScope(frozenset(self.job_names), self.job_labels, frozenset(self.any_labels))
        return Principal(self.user_id, self.user_name, self.role, scope, self.expires_at_ms)

    def token(self, key: str) -> str:
        """Returns the token of the request, signed with the replicas' key."""
        content = self.model_dump_json().encode()
        return f"{base64.urlsafe_b64encode(content).decode()}.{_signature(key, content)}"


def looks_forwarded(request: HTTPConnection) -> bool:
    """Returns whether a request claims to come from another replica."""
    return request.headers.get("authorization", "").partition(" ")[0].lower() == SCHEME.lower()


def authenticate_forwarded(request: HTTPConnection, key: str, replica_id: str) -> Principal:
    """Returns the user for whom a replica forwards a request.

    Args:
        request: The request, which has no body.
        key: The replicas' key.
        replica_id: The id of this replica.

    Raises:
        TokenMissingError: Another program has made the token, or the token belongs to another request.
    """
    found = _read(request.headers.get("authorization", "").partition(" ")[2].strip(), key)
    query = request.scope["query_string"].decode("latin-1")
    path = request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    if (
        found is None
        or has_body
        or found.body_sha256 != hashlib.sha256(b"").hexdigest()
        or (found.target, found.method, found.path) != (replica_id, request.scope["method"], path)
        or found.expires_at_ms <= shared_now_ms()
    ):
        raise TokenMissingError("the token of the other replica is not valid for this request")
    return found.user


def _read(token: str, key: str) -> ForwardedRequest | None:
    if len(token) > _TOKEN_CHARACTERS_MAX or not token.isascii():
        return None
    encoded, _, signature = token.partition(".")
    try:
        content = base64.urlsafe_b64decode(encoded)
    except ValueError:
        return None
    if not hmac.compare_digest(signature, _signature(key, content)):
        return None
    try:
        return ForwardedRequest.model_validate_json(content)
    except ValidationError:
        return None


def _signature(key: str, content: bytes) -> str:
    return hmac.new(key.encode(), _PURPOSE + content, hashlib.sha256).hexdigest()
