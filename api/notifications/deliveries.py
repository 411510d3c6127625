"""Delivers the outbox at least once, with growing waits between attempts."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from keyscale.db.repositories import events, subscriptions
from keyscale.vocabulary import Channel, DeliveryStatus

from ..database_clock import shared_now_ms
from ..maintenance.leader_thread import LeaderThread
from .channels import mail_of, post_of
from .http_sender import NotDeliveredError
from .mail import send

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy.orm import Session, sessionmaker

    from keyscale.db.repositories.subscriptions import Due

    from ..lifecycle.leadership import Leadership
    from ..lifecycle.reconciler import ReconcilerPulse
    from ..mail_server import MailServer
    from .http_sender import Sender

logger = logging.getLogger(__name__)

POLL_S = 1.0
LEASE_MS = 60_000
"""A delivery whose sender has died is sent again after this time."""
EACH_MAX = 4
"""The most messages of a subscription that are sent at once: a slow target must not delay other subscriptions."""
_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1000, 60_000, 3_600_000
WAITS_MS = (
    5 * _SECOND_MS,
    30 * _SECOND_MS,
    2 * _MINUTE_MS,
    10 * _MINUTE_MS,
    30 * _MINUTE_MS,
    _HOUR_MS,
    2 * _HOUR_MS,
    4 * _HOUR_MS,
    8 * _HOUR_MS,
    8 * _HOUR_MS,
)
"""The wait after each failed attempt; after the last attempt, a day has passed."""
JITTER = 0.1


def wait_ms(attempts: int, chance: float) -> int | None:
    """Returns the wait before the next attempt; None after the last attempt.

    Args:
        attempts: How many attempts have failed.
        chance: A random number from 0 to 1, by which the wait is up to a tenth shorter or longer.
    """
    if attempts > len(WAITS_MS):
        return None
    return round(WAITS_MS[attempts - 1] * (1 + JITTER * (2 * chance - 1)))


class Deliveries(LeaderThread):
    """A thread that sends the due deliveries of the outbox.

    It may be killed between any two lines: a delivery is claimed before it is sent, and becomes due again after the
    claim. So a message arrives at least once, always with the same id.

    Args:
        sessions: The database.
        pulse: Shows whether this control plane leads, and in which epoch; only then it works.
        channels: The channels that it sends to. Mails have a thread of their own: a slow mail server must not delay
            other messages.
        sender: Sends messages over HTTP.
        mail_server: Sends mails; None: there is none.
        source: The address of the control plane, for messages.
        chance: Returns a random number from 0 to 1.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        pulse: ReconcilerPulse,
        *,
        channels: Collection[Channel],
        sender: Sender,
        mail_server: MailServer | None,
        source: str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._channels = channels
        self._sender = sender
        self._mail_server = mail_server
        self._source = source
        self._chance = chance
        super().__init__("deliveries", POLL_S, sessions=sessions, pulse=pulse)

    def work(self, leadership: Leadership) -> bool:
        """Sends the due deliveries; returns whether there may be more.

        Raises:
            LeadershipLostError: Another replica leads and continues.
        """
        with leadership.transaction() as session:
            found = subscriptions.claim_due(
                session, shared_now_ms(), channels=self._channels, lease_ms=LEASE_MS, each_max=EACH_MAX
            )
            session.expunge_all()
        if not found:
            return False
        results = asyncio.run(self._send_all(found))
        for due, problem in zip(found, results, strict=True):
            self._settle(leadership, due, problem)
        return True

    async def _send_all(self, found: list[Due]) -> list[NotDeliveredError | None]:
        return await asyncio.gather(*map(self._send, found))

    async def _send(self, due: Due) -> NotDeliveredError | None:
        """Sends one message; returns why it was not delivered."""
        try:
            if due.subscription.channel is not Channel.MAIL:
                await self._sender.post(post_of(due, self._source, int(time.time())))
            elif self._mail_server is None:
                return NotDeliveredError("this control plane has no mail server: KEYSCALE_SMTP_URL is not set")
            else:
                mail = mail_of(due, self._source, self._mail_server.sender)
                await asyncio.to_thread(send, self._mail_server, mail)
        except NotDeliveredError as problem:
            return problem
        except Exception as error:  # a message that cannot be written must not keep other messages
            logger.exception("a defect: delivery %s failed", due.delivery.id)
            return NotDeliveredError(f"the control plane failed: {type(error).__name__}")
        return None

    def _settle(self, leadership: Leadership, due: Due, problem: NotDeliveredError | None) -> None:
        now_ms, attempts = shared_now_ms(), due.delivery.attempts
        pause_ms = None if problem is None or problem.is_final else wait_ms(attempts, self._chance())
        status = (
            DeliveryStatus.DELIVERED
            if problem is None
            else DeliveryStatus.FAILED
            if pause_ms is None
            else DeliveryStatus.PENDING
        )
        with leadership.transaction() as session:
            is_stored = subscriptions.settle(
                session,
                due.delivery.id,
                attempts,
                status=status,
                now_ms=now_ms,
                next_at_ms=None if pause_ms is None else now_ms + pause_ms,
                problem=None if problem is None else str(problem),
            )
            if is_stored and status is DeliveryStatus.FAILED:
                events.record(
                    session,
                    job_id=due.event.job_id,
                    at_ms=now_ms,
                    kind="NOTIFICATION_FAILED",
                    message=f"a notification of {due.event.kind} was not delivered in {attempts} attempts: {problem}",
                    subscription_id=due.subscription.id,
                    delivery_id=due.delivery.id,
                )
