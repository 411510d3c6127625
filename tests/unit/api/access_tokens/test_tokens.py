"""A token is made with the rights that its request names, and ends when it is revoked."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.access.tokens import token_sha256
from keyscale.api.access_tokens import tokens as service
from keyscale.api.access_tokens.schemas import ScopeModel, TokenRequest
from keyscale.api.errors import RequestInvalidError, TokenNameTakenError, TokenNotFoundError
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Token
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

ADMIN = Principal("admin", "root", Role.ADMIN)
NOW_MS, DAY_MS = 5000, 86_400_000


class Tokens:
    """The stored tokens and events."""

    def __init__(self) -> None:
        self.rows: dict[str, Token] = {}
        self.events: list[dict[str, Any]] = []
        self.steps: list[str] = []
        self.context: Any = SimpleNamespace(sessions=SimpleNamespace(begin=self._begin), reads=self._begin)

    @contextmanager
    def _begin(self) -> Iterator[Any]:
        yield None

    def add(self, _: Any, *, token_id: str, scope: JobScope, at_ms: int, **columns: Any) -> Token:
        made = Token(
            id=token_id, job_names=sorted(scope.jobs), job_labels=dict(scope.labels), created_at_ms=at_ms, **columns
        )
        self.rows[token_id] = made
        return made

    def is_name_taken(self, _: Any, name: str, *, at_ms: int) -> bool:
        assert self.steps == ["locked"], "two requests for one name come one after the other"
        assert at_ms == NOW_MS
        return name in {row.name for row in self.rows.values()}


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    stored = Tokens()
    monkeypatch.setattr(service.tokens, "lock_names", lambda _: stored.steps.append("locked"))
    monkeypatch.setattr(service.tokens, "is_name_taken", stored.is_name_taken)
    monkeypatch.setattr(service.tokens, "add", stored.add)
    monkeypatch.setattr(service.tokens, "find_by_id", lambda _, token_id: stored.rows.get(token_id))
    monkeypatch.setattr(service.subscriptions, "remove_of", lambda _, owner_id: [f"of {owner_id}"])
    monkeypatch.setattr(service.events, "record", lambda _, **event: stored.events.append(event))
    monkeypatch.setattr(service, "shared_now_ms", lambda: NOW_MS)
    return stored


def create(stored: Tokens, **fields: Any) -> Any:
    stored.steps.clear()
    return service.create(stored.context, ADMIN, TokenRequest(**{"name": "ci", "role": Role.OPERATOR, **fields}))


def test_a_token_has_its_role_its_scope_and_an_end_and_is_stored_as_its_hash(stored: Tokens) -> None:
    scope = ScopeModel(jobs=["flights"], labels={"team": "a"})
    answer = create(stored, scope=scope, lifetime_ms=1000)
    [row] = stored.rows.values()
    assert (row.sha256, row.role, row.created_by) == (token_sha256(answer.token), Role.OPERATOR, "root")
    assert (row.job_names, row.job_labels, row.expires_at_ms) == (["flights"], {"team": "a"}, NOW_MS + 1000)
    assert (answer.id, answer.scope, answer.expires_at_ms) == (row.id, scope, NOW_MS + 1000)
    [event] = stored.events
    assert (event["kind"], event["actor"], event["token_id"], event["at_ms"]) == (
        "TOKEN_CREATED",
        "root",
        row.id,
        NOW_MS,
    )
    assert (event["job_names"], event["job_labels"], event["job_id"]) == (["flights"], {"team": "a"}, None)
    assert answer.token not in str(event)


def test_a_token_ends_after_90_days_unless_it_is_to_last(stored: Tokens) -> None:
    assert create(stored).expires_at_ms == NOW_MS + 90 * DAY_MS
    assert create(stored, name="forever", lifetime_ms=None).expires_at_ms is None
    assert create(stored, name="all", role=Role.ADMIN).scope is None


@pytest.mark.parametrize(
    "fields", [{"scope": ScopeModel()}, {"role": Role.ADMIN, "scope": ScopeModel(jobs=["flights"])}]
)
def test_a_scope_that_would_hold_nothing_is_refused(stored: Tokens, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalidError):
        create(stored, **fields)
    assert stored.rows == {}


def test_valid_tokens_have_different_names(stored: Tokens) -> None:
    create(stored)
    with pytest.raises(TokenNameTakenError):
        create(stored)
    assert len(stored.rows) == 1


def test_a_token_is_revoked_once(stored: Tokens) -> None:
    token_id = create(stored).id
    service.revoke(stored.context, ADMIN, token_id)
    assert stored.rows[token_id].revoked_at_ms == NOW_MS
    stored.rows[token_id].revoked_at_ms = 1
    service.revoke(stored.context, ADMIN, token_id)
    assert stored.rows[token_id].revoked_at_ms == 1
    [event] = stored.events[1:]
    assert (event["kind"], event["token_id"], event["subscription_ids"]) == (
        "TOKEN_REVOKED",
        token_id,
        [f"of {token_id}"],
    )
    with pytest.raises(TokenNotFoundError):
        service.revoke(stored.context, ADMIN, "other")


def test_a_user_sees_the_own_rights() -> None:
    scope = JobScope(frozenset({"b", "a"}), {"team": "a"}, frozenset({("stage", "live"), ("a", "b")}))
    shown = service.show_user(Principal("id", "ann", Role.VIEWER, scope, 70))
    assert (shown.id, shown.name, shown.role, shown.expires_at_ms) == ("id", "ann", Role.VIEWER, 70)
    assert shown.scope is not None
    assert (shown.scope.jobs, shown.scope.labels) == (["a", "b"], {"team": "a"})
    assert shown.scope.any_labels == ["a=b", "stage=live"]
    assert service.show_user(ADMIN).scope is None


def test_tokens_are_listed_with_everything_but_their_values_by_their_roles(
    stored: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(stored, scope=ScopeModel(jobs=["flights"], labels={"team": "a"}), lifetime_ms=1000)
    [row] = stored.rows.values()
    row.revoked_at_ms = 7
    listed: list[object] = []
    monkeypatch.setattr(service.tokens, "list_all", lambda _, roles: [listed.append(roles), row][1:])
    shown = service.list_all(stored.context, [Role.VIEWER])
    assert [each.model_dump() for each in shown.tokens] == [
        {
            "id": row.id,
            "name": "ci",
            "role": Role.OPERATOR,
            "scope": {"jobs": ["flights"], "labels": {"team": "a"}},
            "created_by": "root",
            "created_at_ms": NOW_MS,
            "expires_at_ms": NOW_MS + 1000,
            "revoked_at_ms": 7,
        }
    ]
    assert listed == [[Role.VIEWER]]


def test_the_events_of_a_token_say_what_was_made_and_what_ended(
    stored: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_id = create(stored, lifetime_ms=1000).id
    user = Principal("bob", "bob", Role.ADMIN)
    monkeypatch.setattr(service.subscriptions, "remove_of", lambda _, owner_id: [f"of {owner_id}", "other"])
    service.revoke(stored.context, user, token_id)
    other_id = create(stored, name="cd", lifetime_ms=None).id
    monkeypatch.setattr(service.subscriptions, "remove_of", lambda *_: [])
    service.revoke(stored.context, user, other_id)
    common = {"job_id": None, "at_ms": NOW_MS}
    made = {**common, "kind": "TOKEN_CREATED", "actor": "root", "job_names": [], "job_labels": {}}
    ended = {**common, "kind": "TOKEN_REVOKED", "actor": "bob"}
    assert stored.events == [
        {
            **made,
            "message": "created the token ci with the role OPERATOR",
            "token_id": token_id,
            "expires_at_ms": NOW_MS + 1000,
        },
        {
            **ended,
            "message": "revoked the token ci and deleted 2 subscriptions",
            "token_id": token_id,
            "subscription_ids": [f"of {token_id}", "other"],
        },
        {**made, "message": "created the token cd with the role OPERATOR", "token_id": other_id, "expires_at_ms": None},
        {**ended, "message": "revoked the token cd", "token_id": other_id, "subscription_ids": []},
    ]
