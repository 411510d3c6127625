"""Notifications leave the outbox at least once, signed, to the subscriptions that may know of their event."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.mail_server import MailServer
from keyscale.api.notifications import alarm_watch, deliveries
from keyscale.api.notifications.alarm_watch import AlarmWatch
from keyscale.api.web.app import deliveries_of
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Delivery, Job
from keyscale.db.repositories import events, subscriptions
from keyscale.vocabulary import HTTP_CHANNELS, Channel, NotificationKind, Role
from tests.integration.api.conftest import add_token
from tests.support.servers.mail_receiver import mail_receiver
from tests.support.servers.webhook_receiver import webhook_receiver

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership
    from keyscale.api.settings import Settings
    from tests.support.servers.mail_receiver import MailReceiver
    from tests.support.servers.webhook_receiver import Received, WebhookReceiver

pytestmark = pytest.mark.either_database


class KilledError(BaseException):
    """In place of SIGKILL."""


class Outbox:
    """The outbox of a control plane, at a time that a test sets."""

    def __init__(self, context: Context, leadership: Leadership) -> None:
        self.context, self.leadership = context, leadership
        self.now_ms = 1_795_000_000_000

    def send(self, channels: Collection[Channel] = HTTP_CHANNELS) -> bool:
        """Sends what is due; returns whether anything was."""
        sender = deliveries_of(self.context, channels)
        with ThreadPoolExecutor(1) as thread:  # a browser's event loop may run in this thread
            return thread.submit(sender.work, self.leadership).result()

    def record(self, job_id: str | None, kind: str = "JOB_FAILED") -> None:
        with self.context.sessions.begin() as session:
            message = "the job is failed: FUNCTION_FAILED"
            events.record(session, job_id=job_id, at_ms=self.now_ms, kind=kind, message=message)


@pytest.fixture
def mails() -> Iterator[MailReceiver]:
    with mail_receiver() as mails:
        yield mails


@pytest.fixture
def settings(settings: Settings, mails: MailReceiver) -> Settings:
    server = MailServer("127.0.0.1", mails.port, "keyscale@example.com")
    return replace(settings, allows_private_targets=True, mail_server=server)


@pytest.fixture
def outbox(context: Context, leadership: Leadership, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    outbox = Outbox(context, leadership)
    monkeypatch.setattr(deliveries, "shared_now_ms", lambda: outbox.now_ms)
    return outbox


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


def subscribe(client: httpx.Client, target: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/subscriptions", json={"target": target, **fields})
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


def delivered(client: httpx.Client, subscription: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/v1/subscriptions/{subscription['id']}/deliveries").json()["deliveries"]
    return found


def is_signed(received: Received, secret: str) -> bool:
    headers = received.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + received.body
    digest = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256)
    return headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


def test_mails_and_other_messages_are_sent_apart(
    client: httpx.Client, job: dict[str, Any], receiver: WebhookReceiver, mails: MailReceiver, outbox: Outbox
) -> None:
    subscribe(client, "ops@example.com", channel="MAIL", kinds=["JOB_FAILED"])
    subscribe(client, receiver.url + "/hook", kinds=["JOB_FAILED"])
    outbox.record(job["id"])
    assert outbox.send()
    assert (len(receiver.received), mails.received) == (1, []), "a slow mail server delays only mails"
    assert outbox.send([Channel.MAIL])
    assert (len(receiver.received), len(mails.received)) == (1, 1)
    assert "To: ops@example.com" in mails.received[0]
    assert "FUNCTION_FAILED" in mails.received[0]


@pytest.mark.real
def test_a_mail_that_the_server_refuses_is_tried_again(
    client: httpx.Client, job: dict[str, Any], mails: MailReceiver, outbox: Outbox
) -> None:
    subscription = subscribe(client, "gone@example.com", channel="MAIL", kinds=["JOB_FAILED"])
    mails.refused.add("gone@example.com")
    outbox.record(job["id"])
    assert outbox.send([Channel.MAIL])
    [shown] = delivered(client, subscription)
    assert (shown["status"], shown["problem"]) == ("PENDING", "the mail server refused the address")


def test_a_message_arrives_signed_after_two_failures_always_with_the_same_id(
    client: httpx.Client, job: dict[str, Any], receiver: WebhookReceiver, outbox: Outbox
) -> None:
    subscription = subscribe(client, receiver.url + "/hook?key=hidden", kinds=["JOB_FAILED"])
    assert "hidden" not in json.dumps(subscription)
    receiver.statuses = [500, 302]
    receiver.headers = {"Location": "/elsewhere"}
    outbox.record(job["id"])
    for attempt, problem in enumerate(("answered 500", "redirects are not followed", None), start=1):
        assert outbox.send()
        [shown] = delivered(client, subscription)
        assert (shown["attempts"], shown["status"]) == (attempt, "DELIVERED" if problem is None else "PENDING")
        assert problem is None or problem in shown["problem"]
        assert not outbox.send()  # not due yet, or delivered
        outbox.now_ms = shown["next_at_ms"] or outbox.now_ms
    assert {each.path for each in receiver.received} == {"/hook?key=hidden"}
    assert [each.headers["webhook-id"] for each in receiver.received] == 3 * [shown["id"]]
    assert all(is_signed(each, subscription["secret"]) for each in receiver.received)
    assert not is_signed(receiver.received[0], "whsec_" + base64.b64encode(bytes(32)).decode())
    event = json.loads(receiver.received[-1].body)
    assert receiver.received[-1].headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert {name: event[name] for name in ("specversion", "type", "subject")} == {
        "specversion": "1.0",
        "type": "keyscale.job_failed",
        "subject": f"jobs/{job['id']}",
    }
    assert (event["id"], event["data"]["job"]["name"]) == (str(shown["event_id"]), "flights")
    assert client.get(f"/v1/subscriptions/{subscription['id']}").json()["pending_count"] == 0


@pytest.mark.real
def test_a_sender_that_dies_before_it_notes_the_result_sends_the_same_message_again(
    client: httpx.Client,
    job: dict[str, Any],
    receiver: WebhookReceiver,
    outbox: Outbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscription = subscribe(client, receiver.url)
    outbox.record(job["id"])

    def die(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as killing:
        killing.setattr(subscriptions, "settle", die)
        with pytest.raises(KilledError):
            outbox.send()
    assert not outbox.send()  # the lease of the dead sender lasts
    outbox.now_ms += deliveries.LEASE_MS
    assert outbox.send()
    assert not outbox.send()
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [each["status"] for each in delivered(client, subscription)] == ["DELIVERED"]


@pytest.mark.real
def test_a_target_that_never_answers_ends_as_failed_and_an_event_says_so(
    client: httpx.Client, job: dict[str, Any], receiver: WebhookReceiver, outbox: Outbox
) -> None:
    subscription = subscribe(client, receiver.url)
    outbox.record(job["id"])
    receiver.statuses = 100 * [503]
    while outbox.send():
        outbox.now_ms = delivered(client, subscription)[0]["next_at_ms"] or outbox.now_ms
    [shown] = delivered(client, subscription)
    assert (shown["status"], shown["attempts"]) == ("FAILED", len(deliveries.WAITS_MS) + 1)
    assert client.get("/v1/subscriptions").json()["subscriptions"][0]["failed_count"] == 1
    [event] = client.get("/v1/events", params={"kind": "NOTIFICATION_FAILED"}).json()["events"]
    assert event["details"]["delivery_id"] == shown["id"]


def test_an_event_reaches_exactly_the_subscriptions_whose_owner_and_selector_cover_its_job(
    client: httpx.Client, context: Context, outbox: Outbox, job: dict[str, Any]
) -> None:
    with context.sessions.begin() as session:
        session.get_one(Job, job["id"]).labels = {"team": "billing"}
        for team in ("billing", "search"):
            add_token(session, f"operator-of-{team}", Role.OPERATOR, JobScope(labels={"team": team}))
        add_token(session, "viewer-of-all", Role.VIEWER)
    target, made = "https://alerts.example.com/hook", {}
    made["all"] = subscribe(client, target)
    made["other kind"] = subscribe(client, target, kinds=["RECORDS_LOST"])
    made["selected"] = subscribe(client, target, selector={"labels": {"team": "billing"}})
    made["not selected"] = subscribe(client, target, selector={"jobs": ["bills"]})
    for team in ("billing", "search"):
        bearer = {"Authorization": f"Bearer operator-of-{team}"}
        answer = client.post("/v1/subscriptions", json={"target": target}, headers=bearer)
        made[team] = answer.json()
        assert "NO_LEADER" not in made[team]["kinds"]
        refused = client.post("/v1/subscriptions", json={"target": target, "kinds": ["NO_LEADER"]}, headers=bearer)
        assert (refused.status_code, refused.json()["code"]) == (422, "REQUEST_INVALID")
        listed = client.get("/v1/subscriptions", headers=bearer).json()["subscriptions"]
        assert [each["id"] for each in listed] == [made[team]["id"]]
        of_mail = client.get("/v1/subscriptions", params={"channel": "MAIL"}, headers=bearer).json()["subscriptions"]
        assert of_mail == []
        hidden = client.delete(f"/v1/subscriptions/{made['all']['id']}", headers=bearer)
        assert (hidden.status_code, hidden.json()["code"]) == (404, "SUBSCRIPTION_NOT_FOUND")
    viewer = {"Authorization": "Bearer viewer-of-all"}
    assert client.get("/v1/subscriptions", headers=viewer).json()["code"] == "ROLE_TOO_LOW"
    outbox.record(job["id"])
    outbox.now_ms += 1
    outbox.record(None, kind="NO_LEADER")
    reached = {name: [each["kind"] for each in delivered(client, subscription)] for name, subscription in made.items()}
    assert reached == {
        "all": ["NO_LEADER", "JOB_FAILED"],
        "other kind": [],
        "selected": ["JOB_FAILED"],
        "not selected": [],
        "billing": ["JOB_FAILED"],
        "search": [],
    }
    assert client.delete(f"/v1/subscriptions/{made['all']['id']}").status_code == 204
    with context.sessions() as session:
        assert session.query(Delivery).filter_by(subscription_id=made["all"]["id"]).count() == 0


def test_a_revoked_token_takes_its_subscriptions_with_it(
    client: httpx.Client, outbox: Outbox, job: dict[str, Any]
) -> None:
    token = client.post("/v1/tokens", json={"name": "leaving", "role": "OPERATOR"}).json()
    bearer, target = {"Authorization": f"Bearer {token['token']}"}, "https://alerts.example.com/hook"
    theirs = client.post("/v1/subscriptions", json={"target": target}, headers=bearer).json()
    ours = subscribe(client, target)
    outbox.record(job["id"])
    assert client.delete(f"/v1/tokens/{token['id']}").status_code == 204
    assert [each["id"] for each in client.get("/v1/subscriptions").json()["subscriptions"]] == [ours["id"]]
    [event] = client.get("/v1/events", params={"kind": "TOKEN_REVOKED"}).json()["events"]
    assert event["message"] == "revoked the token leaving and deleted 1 subscription"
    assert event["details"]["subscription_ids"] == [theirs["id"]]


@pytest.mark.real
def test_an_event_that_is_rolled_back_notifies_nobody(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    subscription = subscribe(client, "https://alerts.example.com/hook")
    with context.sessions() as session:
        events.record(session, job_id=job["id"], at_ms=1, kind="JOB_FAILED", message="the job is failed")
        session.rollback()
    assert delivered(client, subscription) == []


@pytest.mark.real
def test_a_private_target_is_refused_when_it_is_sent_to(
    client: httpx.Client, receiver: WebhookReceiver, outbox: Outbox
) -> None:
    subscription = subscribe(client, receiver.url)  # allowed when it was made
    answer = client.post(f"/v1/subscriptions/{subscription['id']}/test")
    assert (answer.status_code, answer.json()["kind"]) == (202, "SUBSCRIPTION_TESTED")
    outbox.now_ms = answer.json()["next_at_ms"]
    allowing = outbox.context
    outbox.context = replace(allowing, settings=replace(allowing.settings, allows_private_targets=False))
    assert outbox.send()
    assert "private address" in delivered(client, subscription)[0]["problem"]
    assert receiver.received == []
    outbox.now_ms = delivered(client, subscription)[0]["next_at_ms"]
    outbox.context = allowing
    assert outbox.send()
    assert json.loads(receiver.received[0].body)["type"] == "keyscale.subscription_tested"


def test_an_alarm_is_reported_once_when_it_begins_and_once_when_it_ends(
    client: httpx.Client, outbox: Outbox, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = subscribe(client, "https://alerts.example.com/hook", kinds=["STORE_AWAY", "RECORDS_LOST"])
    away = {NotificationKind.STORE_AWAY: "batches wait", NotificationKind.RECORDS_LOST: "3 records"}

    def look(alarms: dict[NotificationKind, str], *, can_have_ended: bool = True) -> list[str]:
        monkeypatch.setattr(alarm_watch, "alarms_of", lambda *_: alarms)
        monkeypatch.setattr(alarm_watch, "can_have_ended", lambda *_: can_have_ended)
        AlarmWatch(outbox.context.sessions, outbox.context.pulse).poll(outbox.leadership)  # another leader each time
        return sorted(each["kind"] for each in delivered(client, subscription))

    begun = ["RECORDS_LOST", "STORE_AWAY"]
    assert look({}) == []
    assert look(away) == begun
    assert look(away) == begun
    assert look({}, can_have_ended=False) == begun
    assert look({}) == [*begun, "STORE_AWAY_ENDED"]
    assert look({}) == [*begun, "STORE_AWAY_ENDED"]
    assert look(away) == sorted([*begun, *begun, "STORE_AWAY_ENDED"])
    assert client.delete(f"/v1/jobs/{job['id']}").status_code < 300
    assert len(look(away)) == 5
    assert client.get("/v1/events", params={"kind": "STORE_AWAY"}).json()["events"][0]["job_id"] == job["id"]


@pytest.mark.real
def test_the_newest_deliveries_of_each_subscription_stay(
    client: httpx.Client, outbox: Outbox, job: dict[str, Any]
) -> None:
    made = [subscribe(client, "https://alerts.example.com/hook") for _ in range(2)]
    for _ in range(3):
        outbox.now_ms += 1
        outbox.record(job["id"])
    newest = [delivered(client, each)[:2] for each in made]
    with outbox.context.sessions.begin() as session:
        assert subscriptions.remove_deliveries(session, keep=2) == 2
    assert [delivered(client, each) for each in made] == newest
