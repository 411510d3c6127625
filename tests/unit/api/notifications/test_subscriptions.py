"""A subscription is about what its owner may see."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.errors import RequestInvalidError, SubscriptionNotFoundError, SubscriptionRefusedError
from keyscale.api.notifications import subscriptions as service
from keyscale.api.notifications.schemas import SubscriptionRequest
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import Delivery, Event
from keyscale.db.repositories.pages import Page, PageRequest
from keyscale.db.repositories.subscriptions import scope_of
from keyscale.vocabulary import PLATFORM_NOTIFICATIONS, Channel, NotificationKind, Role
from tests.support.distinct_values import distinct_row

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


class Shown(Stored):
    """One subscription with three pending and one failed delivery, as its owner and administrators see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.create(
            EVERYTHING, kinds=["JOB_FAILED", "STORE_AWAY"], selector={"jobs": ["bills"], "labels": {"team": "a"}}
        )
        [self.row] = self.rows
        self.removed: list[Subscription] = []
        self.events.clear()
        self.delete = self.removed.append
        self.context.reads = self.context.sessions.begin
        self.owners: list[str | None] = []
        for name, found in (("find", self._find), ("list_all", self._list_all)):
            monkeypatch.setattr(service.subscriptions, name, found)
        monkeypatch.setattr(service.subscriptions, "counts", lambda _: {"other": (9, 9), self.row.id: (3, 1)})
        monkeypatch.setattr(service.events, "record", self._record)
        self.told: list[Event] = []

    def flush(self) -> None:
        """The rows have their numbers."""

    def _find(self, _: Any, subscription_id: str, owner: str | None) -> Subscription | None:
        self.owners.append(owner)
        return self.row if subscription_id == self.row.id and owner in {None, "id"} else None

    def _list_all(self, _: Any, owner: str | None, channels: Any) -> list[Subscription]:
        self.owners.append(owner)
        return [self.row] if self.row.channel in (channels or [self.row.channel]) else []

    def _record(self, _: Any, **event: Any) -> Event:
        self.told.append(Event(id=5, kind=event["kind"], message=event["message"], actor=event["actor"]))
        assert (event["subscription_id"], event["channel"], event["job_id"]) == (self.row.id, "WEBHOOK", None)
        return self.told[-1]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch)


ANN, ROOT, BOB = (
    Principal(*who) for who in (("id", "ann", Role.OPERATOR), ("r", "root", Role.ADMIN), ("b", "bob", Role.OPERATOR))
)


def test_a_subscription_is_shown_with_its_counts_and_without_its_secret(shown: Shown) -> None:
    expected = {
        "id": shown.row.id,
        "channel": Channel.WEBHOOK,
        "target": "https://alerts.example.com/…",
        "kinds": ["JOB_FAILED", "STORE_AWAY"],
        "selector": {"jobs": ["bills"], "labels": {"team": "a"}},
        "created_by": "ann",
        "created_at_ms": shown.row.created_at_ms,
        "pending_count": 3,
        "failed_count": 1,
    }
    for user, owner in ((ANN, "id"), (ROOT, None)):
        assert service.show(shown.context, user, shown.row.id).model_dump(exclude_none=True) == expected
        [listed] = service.list_all(shown.context, user, []).subscriptions
        assert listed.model_dump(exclude_none=True) == expected
        assert shown.owners[-2:] == [owner, owner]
    assert service.list_all(shown.context, ANN, [Channel.MAIL]).subscriptions == []
    for hidden in (service.show, service.delete, service.test):
        with pytest.raises(SubscriptionNotFoundError):
            hidden(shown.context, BOB, shown.row.id)
    assert (shown.removed, shown.told) == ([], [])


def test_a_deletion_and_a_test_are_told_with_their_user(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_delivery(_: Any, subscription: Subscription, event: Event) -> Delivery:
        assert (subscription, event) == (shown.row, shown.told[-1])
        empty = dict.fromkeys(column.name for column in Delivery.__table__.c)
        known = {"id": "d", "subscription_id": subscription.id, "event_id": event.id, "created_at_ms": 1}
        return Delivery(**{**empty, **known, "status": "PENDING", "attempts": 0})

    monkeypatch.setattr(service.subscriptions, "add_delivery", add_delivery)
    sent = service.test(shown.context, ROOT, shown.row.id)
    assert (sent.id, sent.kind, sent.event_id, sent.status) == ("d", "SUBSCRIPTION_TESTED", 5, "PENDING")
    service.delete(shown.context, ANN, shown.row.id)
    assert shown.removed == [shown.row]
    assert [(event.kind, event.actor) for event in shown.told] == [
        ("SUBSCRIPTION_TESTED", "root"),
        ("SUBSCRIPTION_DELETED", "ann"),
    ]


@pytest.mark.parametrize("channel", [Channel.WEBHOOK, Channel.SLACK])
def test_a_subscription_is_stored_as_its_request_and_its_owner_say(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, channel: Channel
) -> None:
    monkeypatch.setattr(service, "shared_now_ms", lambda: 70)
    monkeypatch.setattr(service, "new_secret", lambda: "whsec_new")
    selector = {"jobs": ["orders", "clicks"], "labels": {"stage": "live"}}
    answer = stored.create(BILLING, channel=channel, selector=selector, kinds=["STORE_AWAY", "JOB_FAILED"])
    [row] = stored.rows
    secret = "whsec_new" if channel is Channel.WEBHOOK else None
    shown = {column.name: getattr(row, column.name) for column in row.__table__.columns}
    assert shown == {
        "id": row.id,
        "channel": channel,
        "target": TARGET,
        "secret": secret,
        "kinds": ["JOB_FAILED", "STORE_AWAY"],
        "job_names": ["clicks", "orders"],
        "job_labels": {"stage": "live"},
        "owner_job_names": ["bills"],
        "owner_job_labels": {"team": "billing"},
        "owner_any_labels": [["tier", "a"], ["tier", "b"]],
        "owner_id": "id",
        "created_by": "ann",
        "created_at_ms": 70,
    }
    assert (answer.id, answer.secret, answer.pending_count, answer.failed_count) == (row.id, secret, 0, 0)
    assert answer.selector.model_dump() == {"jobs": ["clicks", "orders"], "labels": {"stage": "live"}}
    assert stored.events == [
        {
            "job_id": None,
            "at_ms": 70,
            "kind": "SUBSCRIPTION_CREATED",
            "actor": "ann",
            "message": "created a subscription to JOB_FAILED, STORE_AWAY",
            "subscription_id": row.id,
            "channel": channel,
        }
    ]


@pytest.mark.parametrize("allows_private", [False, True])
def test_a_target_without_tls_is_taken_where_private_targets_are_allowed(
    stored: Stored, *, allows_private: bool
) -> None:
    stored.context.settings.allows_private_targets = allows_private
    request = SubscriptionRequest(target="http://alerts.example.com/hook")
    user = Principal("id", "ann", Role.OPERATOR)
    if allows_private:
        assert service.create(stored.context, user, request).target == "http://alerts.example.com/…"
    else:
        with pytest.raises(SubscriptionRefusedError, match="begins with https://"):
            service.create(stored.context, user, request)
    assert len(stored.rows) == allows_private


def test_a_selector_that_names_nothing_is_refused(stored: Stored) -> None:
    with pytest.raises(RequestInvalidError, match="name a job or a label"):
        stored.create(EVERYTHING, selector={"jobs": [], "labels": {}})
    assert stored.rows == []


def test_the_deliveries_of_a_subscription_are_listed_with_the_kinds_of_their_events(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [distinct_row(Delivery, id=f"d{number}", event_id=number) for number in (9, 8)]
    asked: list[Any] = []
    monkeypatch.setattr(
        service.subscriptions, "list_deliveries", lambda _, *of: asked.append(of) or Page(rows, (8, "d8"))
    )
    monkeypatch.setattr(
        service.subscriptions, "event_kinds", lambda _, found: {9: "NINE", 8: "EIGHT"} if found is rows else {}
    )
    found = service.list_deliveries(shown.context, ANN, shown.row.id, Listing(2, write_cursor((10, "d10"))))
    assert asked == [(shown.row.id, PageRequest(2, (10, "d10")))]
    assert [(each.id, each.kind) for each in found.deliveries] == [("d9", "NINE"), ("d8", "EIGHT")]
    assert found.next == write_cursor((8, "d8"))
    with pytest.raises(SubscriptionNotFoundError):
        service.list_deliveries(shown.context, BOB, shown.row.id, Listing(2))
