"""A subscription is about what its owner may see."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import RequestInvalidError, SubscriptionRefusedError
from keyscale.api.notifications import subscriptions as service
from keyscale.api.notifications.schemas import SubscriptionRequest
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.repositories.subscriptions import scope_of
from keyscale.vocabulary import PLATFORM_NOTIFICATIONS, NotificationKind, Role

if TYPE_CHECKING:
    from keyscale.db.models import Subscription

BILLING = JobScope(frozenset({"bills"}), {"team": "billing"}, frozenset({("tier", "a"), ("tier", "b")}))
TARGET = "https://alerts.example.com/hook"


class Stored:
    """The subscriptions, in place of a control plane and its database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[Subscription] = []
        self.events: list[dict[str, Any]] = []
        settings = SimpleNamespace(allows_private_targets=False, mail_server=None)
        self.context: Any = SimpleNamespace(
            sessions=SimpleNamespace(begin=lambda: nullcontext(self)), settings=settings
        )
        monkeypatch.setattr(service.subscriptions, "count", lambda _: len(self.rows))
        monkeypatch.setattr(service.events, "record", lambda _, **event: self.events.append(event))

    def add(self, row: Subscription) -> None:
        self.rows.append(row)

    def create(self, scope: JobScope, **request: Any) -> Any:
        user = Principal("id", "ann", Role.OPERATOR, scope)
        return service.create(self.context, user, SubscriptionRequest(target=TARGET, **request))


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    return Stored(monkeypatch)


@pytest.mark.parametrize(
    ("scope", "selector", "of_platform"),
    [(EVERYTHING, None, True), (EVERYTHING, {"jobs": ["bills"]}, False), (BILLING, None, False)],
    ids=["of all jobs", "of selected jobs", "of a user with a scope"],
)
def test_only_a_subscription_to_all_jobs_is_about_the_platform(
    stored: Stored, scope: JobScope, selector: dict[str, Any] | None, of_platform: bool
) -> None:
    kinds = set(stored.create(scope, selector=selector).kinds)
    assert kinds == set(NotificationKind) - (set() if of_platform else PLATFORM_NOTIFICATIONS)
    if of_platform:
        assert stored.create(scope, kinds=["NO_LEADER"]).kinds == ["NO_LEADER"]
    else:
        with pytest.raises(RequestInvalidError, match="NO_LEADER"):
            stored.create(scope, selector=selector, kinds=["NO_LEADER", "JOB_FAILED"])


def test_a_subscription_keeps_its_owner_and_the_owners_scope(stored: Stored) -> None:
    stored.create(BILLING)
    [row] = stored.rows
    assert (scope_of(row), row.owner_id, row.created_by) == (BILLING, "id", "ann")


def test_the_event_of_a_subscription_does_not_name_its_target(stored: Stored) -> None:
    stored.create(EVERYTHING, kinds=["JOB_FAILED"])
    assert stored.events[0]["message"] == "created a subscription to JOB_FAILED"
    assert "alerts.example.com" not in str(stored.events)


def test_a_target_that_cannot_be_reached_is_refused(stored: Stored) -> None:
    with pytest.raises(SubscriptionRefusedError, match="no mail server"):
        service.create(
            stored.context,
            Principal("id", "ann", Role.OPERATOR),
            SubscriptionRequest(channel="MAIL", target="ann@example.com"),
        )
    assert stored.rows == []


def test_so_many_subscriptions_are_allowed_and_not_one_more(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SUBSCRIPTIONS_MAX", 2)
    stored.create(EVERYTHING)
    stored.create(EVERYTHING)
    with pytest.raises(SubscriptionRefusedError, match="at most 2"):
        stored.create(EVERYTHING)
