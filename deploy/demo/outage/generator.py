"""Sends payments all the time, and counts them by itself.

A payment comes at least once, and may be late.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from keyscale.clock import now_ms

from .payments import MINUTE_MS

if TYPE_CHECKING:
    from typing import Self

ACCOUNTS = 500
AGAIN, LATE = 0.1, 0.03
"""The share of payments that come again, and that come late."""
LATE_MS_MAX = 5 * MINUTE_MS
OUT_OF_ORDER_MS = 3000
RECENT = 2000
TICK_S = 0.1


class Payments:
    """Payments on their way to a topic.

    Args:
        servers: The brokers.
        topic: The topic.
        rate: Payments per second.
        seed: Selects the payments.

    Attributes:
        sent: The records sent so far, with those that came again.
        unique: The payments, by their ids.
    """

    def __init__(self, servers: str, topic: str, rate: float, seed: int) -> None:
        # Each record is written once, also while the broker does not answer.
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})
        self._topic, self._rate = topic, rate
        self._chance = random.Random(seed)  # noqa: S311 - a reproducible load
        self._recent: list[dict[str, Any]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="payments", daemon=True)
        self.sent = 0
        self.unique: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Sends no more payments; all payments are then in the topic."""
        self._ended.set()
        self._thread.join()
        self._producer.flush()

    def counts(self) -> Counter[tuple[str, int]]:
        """Returns the number of payments per account and minute."""
        return Counter((each["account"], each["at"] // MINUTE_MS * MINUTE_MS) for each in self.unique.values())

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._ended.wait(TICK_S):
            while self.sent < (time.monotonic() - begun) * self._rate:
                self._send()
            self._producer.poll(0)

    def _send(self) -> None:
        if self._recent and self._chance.random() < AGAIN:
            payment = self._chance.choice(self._recent)
        else:
            payment = self._new()
            self.unique[payment["id"]] = payment
            self._recent = [*self._recent[-RECENT:], payment]
        self._producer.produce(self._topic, json.dumps(payment), key=payment["account"])
        self.sent += 1

    def _new(self) -> dict[str, Any]:
        late_ms = self._chance.randrange(LATE_MS_MAX if self._chance.random() < LATE else OUT_OF_ORDER_MS)
        return {
            "id": f"p{len(self.unique)}",
            "account": f"a{self._chance.randrange(ACCOUNTS)}",
            "cents": self._chance.randrange(1, 100_000),
            "at": now_ms() - late_ms,
        }
