"""A request is let in with the role that its route needs, to what its user's scope covers."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request

from keyscale.api.access import identities
from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.access.identities import (
    DriverIdentity,
    RequireRole,
    require_driver,
    require_known_attempt,
    require_lost_attempt,
)
from keyscale.api.access.principal import TOKEN_CHARACTERS_MAX, Principal
from keyscale.api.access.tokens import attempt_token, token_sha256
from keyscale.api.errors import (
    ArtifactNotFoundError,
    JobNotFoundError,
    OperationNotFoundError,
    OriginNotAllowedError,
    RateLimitedError,
    RoleTooLowError,
    TokenMissingError,
)
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Attempt
from keyscale.db.repositories import events
from keyscale.db.repositories.events import EventOrigin
from keyscale.vocabulary import AttemptStage, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

SCOPE = JobScope(frozenset({"flights"}))
KEY = "the-key-of-the-replicas"


class Door:
    """A control plane with one user, one issuer's user and one attempt, as requests meet it."""

    def __init__(self) -> None:
        self.user = Principal("id", "ann", Role.OPERATOR)
        self.waits: dict[str, float] = {}
        self.reports: dict[str, float] = {}
        self.sessions = 0
        take = SimpleNamespace(take=lambda user: self.waits.get(user, 0.0))
        self.context = SimpleNamespace(
            reads=self._reads,
            rates=SimpleNamespace(
                per_user=take, reports_ms=SimpleNamespace(wait_s=lambda job: self.reports.get(job, 0.0))
            ),
            issuer=SimpleNamespace(authenticate=lambda value: Principal(value, "oidc:eve", Role.ADMIN)),
            announcer=SimpleNamespace(replica_id="own"),
        )

    @contextmanager
    def _reads(self) -> Iterator[Any]:
        self.sessions += 1
        yield None

    def request(
        self, method: str = "GET", query: str = "", path: dict[str, str] | None = None, **headers: str
    ) -> Request:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": "/", "query_string": query.encode(), "headers": raw}
        return Request(
            {**scope, "path_params": path or {}, "app": SimpleNamespace(state=SimpleNamespace(context=self.context))}
        )

    def enter(self, role: Role = Role.VIEWER, **request: Any) -> Principal:
        return RequireRole(role)(self.request(**{"authorization": "Bearer abc", **request}))


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    door = Door()

    def authenticate(_: Any, value: str) -> Principal:
        if value != "abc":
            raise TokenMissingError(value)
        return door.user

    def authenticate_cookie(_: Any, cookie: str) -> Principal:
        if cookie != "def":
            raise TokenMissingError(cookie)
        return door.user

    def find_job(_: Any, job: str, *, scope: JobScope) -> str | None:
        return job if job in scope.jobs else None

    def is_visible(_: Any, artifact: str, *, scope: JobScope, user_id: str) -> bool:
        return (artifact, scope, user_id) == ("mine", SCOPE, "id")

    monkeypatch.setattr(identities, "authenticate_token", authenticate)
    monkeypatch.setattr(identities, "authenticate_cookie", authenticate_cookie)
    monkeypatch.setattr(identities.jobs, "find", find_job)
    monkeypatch.setattr(
        identities.jobs, "id_of_operation", lambda _, name: {"own": "flights", "other": "bills"}.get(name)
    )
    monkeypatch.setattr(identities.artifacts, "is_visible", is_visible)
    monkeypatch.setattr(identities.replicas, "shared_key", lambda _: KEY)
    return door


@pytest.mark.parametrize(
    ("own", "needed", "is_let_in"),
    [
        (Role.VIEWER, Role.VIEWER, True),
        (Role.VIEWER, Role.OPERATOR, False),
        (Role.OPERATOR, Role.OPERATOR, True),
        (Role.OPERATOR, Role.ADMIN, False),
        (Role.ADMIN, Role.VIEWER, True),
    ],
)
def test_a_route_is_for_users_with_its_role(door: Door, own: Role, needed: Role, is_let_in: bool) -> None:
    door.user = Principal("id", "ann", own)
    if is_let_in:
        assert door.enter(needed) is door.user
    else:
        with pytest.raises(RoleTooLowError):
            door.enter(needed)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ({}, None),
        ({"job_id": "flights"}, None),
        ({"job_id": "bills"}, JobNotFoundError),
        ({"operation_id": "own"}, None),
        ({"operation_id": "other"}, OperationNotFoundError),
        ({"operation_id": "gone"}, OperationNotFoundError),
        ({"artifact_id": "mine"}, None),
        ({"artifact_id": "other"}, ArtifactNotFoundError),
        ({"job_id": "flights", "operation_id": "other"}, OperationNotFoundError),
    ],
)
def test_what_is_outside_of_a_scope_is_answered_as_if_it_were_not_there(
    door: Door, path: dict[str, str], error: type[Exception] | None
) -> None:
    door.user = Principal("id", "ann", Role.OPERATOR, SCOPE)
    request = door.request(path=path, authorization="Bearer abc")
    if error is None:
        assert RequireRole(Role.VIEWER)(request) is door.user
        assert not request.state.is_out_of_scope
    else:
        with pytest.raises(error):
            RequireRole(Role.VIEWER)(request)
        assert request.state.is_out_of_scope, "it is recorded as a refusal"
    door.user = Principal("id", "ann", Role.OPERATOR)
    assert door.enter(path=path) is door.user, "a user without a scope reaches everything"


def test_a_request_is_checked_once(door: Door) -> None:
    request = door.request(authorization="Bearer abc")
    assert RequireRole(Role.VIEWER)(request) is RequireRole(Role.VIEWER)(request)
    assert door.sessions == 1


def test_a_user_who_sends_too_much_waits(door: Door) -> None:
    door.waits = {"other": 3.0}
    door.enter()
    door.waits = {"id": 3.0}
    with pytest.raises(RateLimitedError):
        door.enter()


def test_a_token_of_the_issuer_is_checked_by_the_issuer_and_any_other_by_the_platform(door: Door) -> None:
    assert door.enter(authorization="Bearer a.b.c").name == "oidc:eve"
    assert door.enter(authorization="Bearer abc").name == "ann"
    door.context.issuer = None
    with pytest.raises(TokenMissingError):
        door.enter(authorization="Bearer a.b.c")
    with pytest.raises(TokenMissingError):
        door.enter(authorization="")


def test_a_request_that_another_replica_forwards_is_of_the_user_whom_the_replica_names(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    request = door.request(authorization="Keyscale-Replica a.b.c", cookie=f"{SESSION_COOKIE}=def")
    monkeypatch.setattr(identities, "authenticate_forwarded", lambda *of: asked.append(of) or door.user)
    assert RequireRole(Role.VIEWER)(request) is door.user
    assert asked == [(request, KEY, "own")]
    door.enter()
    assert len(asked) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PATCH", "DELETE"])
def test_a_cookie_reads_and_changes_something_only_for_an_own_page(door: Door, method: str) -> None:
    cookie = {"authorization": "", "cookie": f"{SESSION_COOKIE}=def"}
    own = {"x_requested_with": "keyscale", "host": "here", "origin": "https://here"}
    assert door.enter(method=method, **cookie, **own) is door.user
    if method in {"GET", "HEAD"}:
        assert door.enter(method=method, **cookie) is door.user
    else:
        with pytest.raises(OriginNotAllowedError):
            door.enter(method=method, **cookie)
    assert door.enter(method=method) is door.user, "a bearer token is sent by no other site"


def test_events_name_the_user_or_the_attempt_of_a_request(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = EventOrigin("request", "127.0.0.1")
    before = events.ORIGIN.set(origin)
    try:
        door.enter()
        assert (origin.actor, origin.actor_id) == ("ann", "id")
        monkeypatch.setattr(identities.attempts, "find_by_token", lambda *_: attempt())
        require_driver(door.request(authorization="Bearer t"))
        assert (origin.actor, origin.actor_id) == ("attempt 4", "job/4")
    finally:
        events.ORIGIN.reset(before)


def attempt(stage: AttemptStage = AttemptStage.ACTIVE, value: str | None = "t") -> Attempt:
    sha256 = None if value is None else token_sha256(value)
    return Attempt(job_id="job", number=4, stage=stage, token_sha256=sha256)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Attempt]:
    """Attempts by their tokens; attempt 4 of the job is also found by its number."""
    found: dict[str, Attempt] = {"t": attempt()}

    def by_token(_: Any, sha256: str) -> Attempt | None:
        return next((each for token, each in found.items() if token_sha256(token) == sha256), None)

    def by_number(_: Any, job_id: str, number: int) -> Attempt | None:
        return next((each for each in found.values() if (each.job_id, each.number) == (job_id, number)), None)

    monkeypatch.setattr(identities.attempts, "find_by_token", by_token)
    monkeypatch.setattr(identities.attempts, "find", by_number)
    return found


@pytest.mark.parametrize(
    ("stage", "over"), [(AttemptStage.ACTIVE, False), (AttemptStage.STANDBY, False), (AttemptStage.ENDED, True)]
)
def test_a_driver_is_known_by_the_token_of_its_attempt(
    door: Door, known: dict[str, Attempt], stage: AttemptStage, over: bool
) -> None:
    known["t"] = attempt(stage)
    request = door.request(authorization="Bearer t")
    assert require_driver(request) == DriverIdentity("job", 4, over)
    assert request.state.driver == DriverIdentity("job", 4, over)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("token", ["", "x", "v" * (TOKEN_CHARACTERS_MAX + 1)])
def test_a_driver_with_another_token_is_refused(door: Door, known: dict[str, Attempt], token: str) -> None:
    if len(token) > 1:
        known[token] = attempt()
    with pytest.raises(TokenMissingError):
        require_driver(door.request(authorization=f"Bearer {token}"))


@pytest.mark.usefixtures("known")
def test_a_driver_whose_job_reports_too_much_waits(door: Door) -> None:
    door.reports = {"other": 2.0}
    require_driver(door.request(authorization="Bearer t"))
    door.reports = {"job": 2.0}
    with pytest.raises(RateLimitedError):
        require_driver(door.request(authorization="Bearer t"))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("query", "token", "is_known"),
    [
        ("attempt=job:4", "", True),
        ("attempt=job:5", "t", False),
        ("attempt=job:", "", False),
        ("attempt=:4", "", False),
        ("attempt=job:4x", "", False),
        ("attempt=job:4444444444444", "", False),
        ("", "t", True),
        ("attempt=job:", "t", True),
        ("", "x", False),
        ("", "", False),
    ],
)
def test_an_attempt_is_named_by_its_number_or_else_by_its_token(
    door: Door, query: str, token: str, is_known: bool
) -> None:
    request = door.request(query=query, authorization=f"Bearer {token}")
    if is_known:
        assert require_known_attempt(request) == token_sha256("t")
    else:
        with pytest.raises(TokenMissingError):
            require_known_attempt(request)


def test_an_attempt_without_a_token_proves_nothing(door: Door, known: dict[str, Attempt]) -> None:
    known["t"] = attempt(value=None)
    with pytest.raises(TokenMissingError):
        require_known_attempt(door.request(query="attempt=job:4"))


@pytest.mark.parametrize(
    ("query", "is_lost"),
    [
        ("attempt=job:5&salt=s", True),
        ("attempt=job:4&salt=s", True),
        ("attempt=job:4&salt=known", False),
        ("attempt=:5&salt=s", False),
        ("attempt=job:x&salt=s", False),
        ("attempt=job:5&salt=%00", False),
        ("attempt=job%00:5&salt=s", False),
    ],
)
def test_an_attempt_is_lost_if_the_database_does_not_know_its_token(
    door: Door, known: dict[str, Attempt], query: str, is_lost: bool
) -> None:
    known["t"] = attempt(value=attempt_token(KEY, "job:4", "known"))
    request = door.request(query=query)
    if is_lost:
        named = request.query_params["attempt"]
        assert require_lost_attempt(request) == token_sha256(attempt_token(KEY, named, "s"))
    else:
        with pytest.raises(TokenMissingError):
            require_lost_attempt(request)


def test_an_attempt_that_is_about_to_be_launched_is_known(door: Door, known: dict[str, Attempt]) -> None:
    known["t"] = attempt(value=None)
    with pytest.raises(TokenMissingError):
        require_lost_attempt(door.request(query="attempt=job:4&salt=s"))
