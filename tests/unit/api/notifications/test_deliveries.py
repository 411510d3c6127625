"""A message is tried again for a day, and each attempt has its own result."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.mail_server import MailServer
from keyscale.api.notifications import deliveries
from keyscale.api.notifications.deliveries import WAITS_MS, Deliveries, wait_ms
from keyscale.api.notifications.http_sender import NotDeliveredError
from keyscale.db.models import Delivery, Event, Job, Subscription
from keyscale.db.repositories.subscriptions import Due
from keyscale.vocabulary import Channel, DeliveryStatus

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_MS = 1_000_000
DELIVERED, FAILED, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.FAILED, DeliveryStatus.PENDING


def test_the_waits_grow_to_a_day_and_then_end() -> None:
    waits = [wait_ms(attempts, 0.5) for attempts in range(1, len(WAITS_MS) + 2)]
    assert waits == [*WAITS_MS, None]
    assert list(WAITS_MS) == sorted(WAITS_MS)
    assert 85_000_000 < sum(WAITS_MS) < 90_000_000
    assert (wait_ms(1, 0.0), wait_ms(1, 1.0)) == (4500, 5500)


class Outbox:
    """The due deliveries with their targets, in place of a database and of the network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[Due] = []
        self.answers: dict[str, Exception | None] = {}
        self.settled: dict[str, tuple[DeliveryStatus, int | None, str | None]] = {}
        self.events: list[str] = []
        self.is_last_attempt = True
        self.mail_server: MailServer | None = None
        self.chance: Callable[[], float] = lambda: 0.5
        monkeypatch.setattr(deliveries, "shared_now_ms", lambda: NOW_MS)
        monkeypatch.setattr(deliveries.subscriptions, "claim_due", lambda *_, **__: self.due)
        monkeypatch.setattr(deliveries.subscriptions, "settle", self._settle)
        monkeypatch.setattr(deliveries.events, "record", self._record)
        self.told: list[dict[str, Any]] = []

    def _record(self, _: Any, *, kind: str, **event: Any) -> None:
        self.events.append(kind)
        self.told.append(event)

    def add(self, name: str, answer: Exception | None = None, *, attempts: int = 1, channel: str = "SLACK") -> None:
        target = f"https://{name}.example.com/"
        self.answers[target] = answer
        delivery = Delivery(id=name, attempts=attempts)
        subscription = Subscription(id=f"of {name}", channel=Channel(channel), target=target)
        event = Event(id=1, job_id="job", at_ms=1, kind="JOB_FAILED", message="it failed", actor="system", details={})
        self.due.append(Due(delivery, subscription, event, Job(id="job", name="flights", labels={})))

    def work(self) -> bool:
        session = SimpleNamespace(expunge_all=lambda: None)
        leadership: Any = SimpleNamespace(transaction=lambda: nullcontext(session))
        unused: Any = None
        sender = Deliveries(
            unused,
            unused,
            channels=list(Channel),
            sender=cast("Any", SimpleNamespace(post=self._post)),
            mail_server=self.mail_server,
            source="https://keyscale.example.com",
            chance=self.chance,
        )
        return sender.work(leadership)

    async def _post(self, post: Any) -> None:
        answer = self.answers[post.url]
        if answer is not None:
            raise answer

    def _settle(self, _: Any, name: str, attempts: int, **result: Any) -> bool:
        assert (result["now_ms"], attempts) == (NOW_MS, next(d.delivery.attempts for d in self.due if d[0].id == name))
        self.settled[name] = (result["status"], result["next_at_ms"], result["problem"])
        return self.is_last_attempt


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> Outbox:
    return Outbox(monkeypatch)


def test_each_message_has_the_result_of_its_own_target(outbox: Outbox) -> None:
    outbox.add("good")
    outbox.add("away", NotDeliveredError("no answer"), attempts=2)
    outbox.add("gone", NotDeliveredError("it answered 410", is_final=True))
    outbox.add("defect", ZeroDivisionError())
    outbox.add("mail", channel="MAIL")
    assert outbox.work()
    first, second = NOW_MS + WAITS_MS[0], NOW_MS + WAITS_MS[1]
    assert outbox.settled == {
        "good": (DELIVERED, None, None),
        "away": (PENDING, second, "no answer"),
        "gone": (FAILED, None, "it answered 410"),
        "defect": (PENDING, first, "the control plane failed: ZeroDivisionError"),
        "mail": (PENDING, first, "this control plane has no mail server: KEYSCALE_SMTP_URL is not set"),
    }
    assert outbox.events == ["NOTIFICATION_FAILED"], "of the message that is not sent again"
    assert outbox.told == [
        {
            "job_id": "job",
            "at_ms": NOW_MS,
            "message": "a notification of JOB_FAILED was not delivered in 1 attempts: it answered 410",
            "subscription_id": "of gone",
            "delivery_id": "gone",
        }
    ]


@pytest.mark.parametrize(("attempts", "status"), [(len(WAITS_MS), PENDING), (len(WAITS_MS) + 1, FAILED)])
def test_a_message_fails_with_its_last_attempt(outbox: Outbox, attempts: int, status: DeliveryStatus) -> None:
    outbox.add("away", NotDeliveredError("no answer"), attempts=attempts)
    outbox.work()
    assert outbox.settled["away"][0] is status
    assert len(outbox.events) == (status is FAILED)


def test_a_failure_that_a_later_attempt_has_overtaken_is_no_event(outbox: Outbox) -> None:
    outbox.add("gone", NotDeliveredError("it answered 410", is_final=True))
    outbox.is_last_attempt = False
    outbox.work()
    assert outbox.events == []


def test_without_due_messages_there_is_no_more_work(outbox: Outbox) -> None:
    assert not outbox.work()


def test_due_messages_are_claimed_and_signed_at_the_present_time_with_the_address_of_the_control_plane(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[Any] = []
    posted: list[Any] = []
    outbox.add("hook", channel="WEBHOOK")
    monkeypatch.setattr(
        deliveries.subscriptions, "claim_due", lambda _, *of, **more: claimed.append((*of, more)) or outbox.due
    )
    monkeypatch.setattr(deliveries.time, "time", lambda: 1_795_000_000.9)
    monkeypatch.setattr(outbox, "answers", {**outbox.answers})
    post = outbox._post

    async def note(message: Any) -> None:
        posted.append(message)
        await post(message)

    monkeypatch.setattr(outbox, "_post", note)
    assert outbox.work()
    limits = {"channels": list(Channel), "lease_ms": deliveries.LEASE_MS, "each_max": deliveries.EACH_MAX}
    assert claimed == [(NOW_MS, limits)]
    [message] = posted
    assert message.headers["webhook-timestamp"] == "1795000000"
    assert message.headers["webhook-id"] == "hook"
    assert json.loads(message.body)["source"] == "https://keyscale.example.com"


def test_a_mail_is_sent_by_the_mail_server_from_its_sender(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MailServer("mail.example.com", 587, "keyscale@example.com")
    sent: list[Any] = []
    outbox.add("mail", channel="MAIL")
    outbox.due[0].subscription.target = "ops@example.com"
    monkeypatch.setattr(deliveries, "send", lambda *given: sent.append(given))
    outbox.mail_server = server
    assert outbox.work()
    [(by, mail)] = sent
    assert (by, mail["From"], mail["To"], mail["Message-ID"]) == (
        server,
        "keyscale@example.com",
        "ops@example.com",
        "<mail@keyscale>",
    )
    assert "https://keyscale.example.com/ui/jobs/flights/overview" in mail.get_content()
    assert outbox.settled == {"mail": (DELIVERED, None, None)}


def test_an_attempt_waits_by_its_own_chance(outbox: Outbox) -> None:
    for number in (1, 2):
        outbox.add(f"away{number}", NotDeliveredError("no answer"), attempts=number)
    chances = iter([0.0, 1.0])
    outbox.chance = lambda: next(chances)
    outbox.work()
    waits = [(next_at_ms or 0) - NOW_MS for _, next_at_ms, _ in outbox.settled.values()]
    assert waits == [wait_ms(1, 0.0), wait_ms(2, 1.0)]


def test_messages_are_sent_beside_each_other(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)

    async def wait_for_both(_: Any) -> None:
        async with asyncio.timeout(1):
            await both.wait()

    monkeypatch.setattr(outbox, "_post", wait_for_both)
    outbox.add("slow")
    outbox.add("fast")
    assert outbox.work()
    assert [status for status, _, _ in outbox.settled.values()] == [DELIVERED, DELIVERED]


def test_the_next_attempt_waits_since_the_end_of_the_attempt_before(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([NOW_MS, NOW_MS + 7000])
    settled: list[Any] = []
    monkeypatch.setattr(deliveries, "shared_now_ms", lambda: next(moments))
    monkeypatch.setattr(deliveries.subscriptions, "settle", lambda *_, **result: settled.append(result))
    outbox.add("away", NotDeliveredError("no answer"))
    outbox.work()
    [result] = settled
    assert (result["now_ms"], result["next_at_ms"]) == (NOW_MS + 7000, NOW_MS + 7000 + WAITS_MS[0])
