"""Each channel gets a notification in its own form, to a target of its own form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyscale.api.notifications.channels import (
    PAGERDUTY_URL,
    mail_of,
    post_of,
    problem_of_target,
    shown_target,
    text_of,
)
from keyscale.api.notifications.cloud_event import CONTENT_TYPE, cloud_event, new_secret, signed_headers
from keyscale.db.event_kinds import ALARM_ENDED, EVENT_KINDS, LASTING, notification_of
from keyscale.db.models import Delivery, Event, Job, Subscription
from keyscale.db.repositories.subscriptions import Due
from keyscale.vocabulary import PLATFORM_NOTIFICATIONS, Channel, NotificationKind

SOURCE = "https://keyscale.example.com"
ROUTING_KEY = "0123456789abcdefghij0123456789AB"


def due(channel: Channel, target: str, kind: str = "STORE_AWAY", message: str = "batches wait") -> Due:
    return Due(
        Delivery(id="msg_1", attempts=1),
        Subscription(channel=channel, target=target, secret=new_secret()),
        Event(id=7, job_id="j1", at_ms=0, kind=kind, actor="system", message=message, details={}),
        Job(id="j1", name="orders/eu", labels={"team": "billing"}),
    )


def body_of(found: Due) -> Any:
    return json.loads(post_of(found, SOURCE, 1).body)


def test_a_signature_is_that_of_standard_webhooks() -> None:
    headers = signed_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_slack_shows_the_signs_of_its_markup_as_they_are() -> None:
    text = body_of(due(Channel.SLACK, "https://hooks.slack.example/x", message="a < b & <!channel>"))["text"]
    assert "a &lt; b &amp; &lt;!channel&gt;" in text
    assert text.startswith("orders/eu: store away\n")
    assert text.endswith(f"\n{SOURCE}/ui/jobs/orders%2Feu/overview")


def test_teams_gets_a_card_with_a_block_per_line() -> None:
    [attachment] = body_of(due(Channel.TEAMS, "https://teams.example/x"))["attachments"]
    assert [block["text"] for block in attachment["content"]["body"]][:2] == ["orders/eu: store away", "batches wait"]


def test_the_end_of_an_alarm_resolves_the_incident_that_its_begin_triggered() -> None:
    begun, ended = (body_of(due(Channel.PAGERDUTY, ROUTING_KEY, kind)) for kind in ("STORE_AWAY", "STORE_AWAY_ENDED"))
    assert (begun["event_action"], ended["event_action"]) == ("trigger", "resolve")
    assert begun["dedup_key"] == ended["dedup_key"]
    assert (begun["routing_key"], begun["payload"]["severity"]) == (ROUTING_KEY, "critical")
    assert post_of(due(Channel.PAGERDUTY, ROUTING_KEY), SOURCE, 1).url == PAGERDUTY_URL


def test_each_job_and_each_kind_of_alarm_has_an_incident_of_its_own() -> None:
    kinds = [kind for lasting in sorted(LASTING) for kind in (lasting, f"{lasting}{ALARM_ENDED}")]
    found = [due(Channel.PAGERDUTY, ROUTING_KEY, kind) for kind in kinds * 2]
    for of_another_job in found[len(kinds) :]:
        of_another_job.event.job_id = "j2"
    keys = [body_of(each)["dedup_key"] for each in found]
    assert keys[::2] == keys[1::2], "the end of an alarm has the key of its begin"
    assert len(set(keys)) == 2 * len(LASTING)


def test_the_summary_of_an_incident_has_the_length_that_pagerduty_takes() -> None:
    body = body_of(due(Channel.PAGERDUTY, ROUTING_KEY, message="m" * 2000))
    assert len(body["payload"]["summary"]) == 1024


def test_a_mail_has_one_line_as_subject_and_the_id_of_its_delivery() -> None:
    mail = mail_of(due(Channel.MAIL, "ops@example.com", message="first\nBcc: x@example.com"), SOURCE, "k@example.com")
    assert (mail["Subject"], mail["To"], mail["Bcc"]) == ("orders/eu: store away", "ops@example.com", None)
    assert mail["Message-ID"] == "<msg_1@keyscale>"


@pytest.mark.parametrize(
    ("channel", "target"),
    [
        (Channel.WEBHOOK, "http://alerts.example.com/"),
        (Channel.WEBHOOK, "file:///etc/passwd"),
        (Channel.WEBHOOK, "https:///path"),
        (Channel.WEBHOOK, "https://user:password@alerts.example.com/"),
        (Channel.WEBHOOK, "https://alerts.example.com/a b"),
        (Channel.WEBHOOK, "https://alerts.example.com:99999/"),
        (Channel.WEBHOOK, "https://[::1/"),
        (Channel.SLACK, "https://alerts.example.com/\r\nHost: x"),
        (Channel.PAGERDUTY, "https://events.pagerduty.com"),
        (Channel.MAIL, "ops@example.com, others@example.com"),
        (Channel.MAIL, "ops@example.com\nBcc: x@example.com"),
    ],
)
def test_a_target_of_another_form_is_refused(channel: Channel, target: str) -> None:
    assert problem_of_target(channel, target, needs_https=True) is not None


@pytest.mark.parametrize(
    ("channel", "target", "shown"),
    [
        (Channel.WEBHOOK, "https://alerts.example.com:8443/hook?key=hidden", "https://alerts.example.com:8443/…"),
        (Channel.WEBHOOK, "https://alerts.example.com?key=hidden", "https://alerts.example.com/…"),
        (Channel.SLACK, "https://hooks.slack.com/services/hidden", "https://hooks.slack.com/…"),
        (Channel.TEAMS, "https://alerts.example.com", "https://alerts.example.com/"),
        (Channel.PAGERDUTY, ROUTING_KEY, "…89AB"),
        (Channel.MAIL, "ops@example.com", "ops@example.com"),
    ],
)
def test_a_target_is_shown_without_what_may_be_secret(channel: Channel, target: str, shown: str) -> None:
    assert problem_of_target(channel, target, needs_https=True) is None
    assert shown_target(channel, target) == shown


def test_each_kind_of_notification_is_about_some_kind_of_event() -> None:
    found = {notification_of(kind) for kind in EVENT_KINDS}
    assert found - {None} == set(NotificationKind)
    assert set(NotificationKind) >= PLATFORM_NOTIFICATIONS
    assert notification_of("RESCALE_ROLLED_BACK") is NotificationKind.OPERATION_ROLLED_BACK
    assert notification_of("STOP_WITH_SAVEPOINT_COMPLETED") is None  # a step of an operation


EVENT = Event(
    id=7,
    job_id="j1",
    at_ms=1_795_000_000_123,
    kind="RESCALE_COMPLETED",
    actor="ann",
    message="it went well",
    details={"operation_id": "o"},
)
JOB = Job(id="j1", name="orders/eu", labels={"team": "billing"})
TIME = "2026-11-18T11:06:40.123+00:00"


@pytest.mark.parametrize("job", [JOB, None], ids=["of a job", "of the platform"])
def test_an_event_of_a_webhook_has_each_fact_in_its_own_field(job: Job | None) -> None:
    about = {"id": "j1", "name": "orders/eu", "labels": {"team": "billing"}}
    assert cloud_event(EVENT, job, SOURCE) == {
        "specversion": "1.0",
        "id": "7",
        "source": SOURCE,
        "type": "keyscale.rescale_completed",
        "time": TIME,
        "datacontenttype": "application/json",
        "data": {
            "kind": "RESCALE_COMPLETED",
            "message": "it went well",
            "job": None if job is None else about,
            "actor": "ann",
            "at_ms": 1_795_000_000_123,
            "details": {"operation_id": "o"},
        },
        **({} if job is None else {"subject": "jobs/j1"}),
    }
    page = f"{SOURCE}/ui/system" if job is None else f"{SOURCE}/ui/jobs/orders%2Feu/overview"
    noun = "Keyscale" if job is None else "orders/eu"
    assert text_of(EVENT, job, SOURCE) == f"{noun}: rescale completed\nit went well\n{page}"


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("JOB_FAILED", "critical"),
        ("NO_LEADER", "critical"),
        ("RESCALE_COMPLETED", "info"),
        ("RESCALE_ROLLED_BACK", "warning"),
        ("CHECKPOINTS_LATE", "warning"),
        ("STORE_AWAY_ENDED", "critical"),
    ],
)
def test_an_incident_has_the_severity_of_its_kind_and_the_facts_of_its_event(kind: str, severity: str) -> None:
    found = due(Channel.PAGERDUTY, ROUTING_KEY, kind)
    body = body_of(found)
    assert body["payload"] == {
        "summary": f"orders/eu: {kind.replace('_', ' ').lower()}: batches wait",
        "source": SOURCE,
        "severity": severity,
        "custom_details": cloud_event(found.event, found.job, SOURCE)["data"],
    }
    found.event.job_id, platform = None, found._replace(job=None)
    assert body_of(platform)["dedup_key"].endswith("/platform")


def test_a_webhook_is_signed_with_its_secret_for_its_delivery_at_the_time_of_the_attempt() -> None:
    found = due(Channel.WEBHOOK, "https://alerts.example.com/hook")
    post = post_of(found, SOURCE, 99)
    signed = signed_headers(found.subscription.secret or "", "msg_1", 99, post.body)
    assert (post.url, json.loads(post.body)) == (found.subscription.target, cloud_event(found.event, found.job, SOURCE))
    assert post.headers == {"Content-Type": CONTENT_TYPE, **signed}
    assert post_of(due(Channel.SLACK, "https://hooks.slack.example/x"), SOURCE, 99).headers == {
        "Content-Type": "application/json"
    }
