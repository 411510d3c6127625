"""Requests for the access log example, many delivered twice, and the right results, computed from all at once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Request = dict[str, Any]
Rows = Counter[tuple[Any, ...]]

START_MS = 1_700_002_800_000
STEP_MS = 7  # no two requests are a session's gap apart to the millisecond, where both answers are right
BOUND_MS = 5_000
_END_AFTER_MS = 24 * 3_600_000
_PAGES = ("/", "/prices", "/docs", "/docs/state", "/blog", "/search")


@dataclass(frozen=True, slots=True)
class AccessLog:
    """A log in files: out of order by less than BOUND_MS; one delivery in five repeats one of this file or the last."""

    files: list[list[Request]]

    @classmethod
    def make(cls, seed: int, files: int, requests: int) -> AccessLog:
        """Seeded. The last file holds one request, much later than all others: it ends every window and session."""
        history = random.Random(seed)
        made = [_request(history, number) for number in range(files * requests)]
        made.sort(key=lambda request: request["at"] + history.randrange(BOUND_MS))
        cut = [made[at : at + requests] for at in range(0, len(made), requests)]
        delivered = []
        for number, file in enumerate(cut):
            again = history.sample(file, requests // 10) + history.sample(cut[max(0, number - 1)], requests // 10)
            # A repeated request may be late, but not as late as a session's end: it is dropped before that matters.
            delivered.append([*file, *again])
        last = {"user": "last", "page": "/last", "status": 200, "bytes": 1}
        at = max(request["at"] for request in made) + _END_AFTER_MS
        return cls([*delivered, [{"request_id": "last", "at": at, **last}]])

    @property
    def unique(self) -> list[Request]:
        return list({request["request_id"]: request for file in self.files for request in file}.values())

    def is_complete(self, end_ms: int) -> bool:
        """Whether the requests end a window."""
        return end_ms <= max(request["at"] for request in self.unique) - BOUND_MS

    def page_views(self) -> Rows:
        counts = Counter(
            (request["page"], request["at"] // 3_600_000) for request in self.unique if request["status"] < 400
        )
        return Counter(
            (page, hour * 3_600_000, hour * 3_600_000 + 3_600_000, count)
            for (page, hour), count in counts.items()
            if self.is_complete(hour * 3_600_000 + 3_600_000)
        )

    def top_pages(self) -> Rows:
        hours = defaultdict(list)
        for page, _, end, count in self.page_views():
            hours[end].append((-count, page))
        return Counter(
            (end, rank, page, -negative)
            for end, pages in hours.items()
            for rank, (negative, page) in enumerate(sorted(pages)[:3], 1)
        )

    def alerts(self) -> Rows:
        minutes = defaultdict(list)
        for request in self.unique:
            minutes[request["page"], request["at"] // 60_000].append(request["status"] >= 500)
        return Counter(
            (page, minute * 60_000, len(failed), sum(failed))
            for (page, minute), failed in minutes.items()
            if len(failed) >= 3 and sum(failed) * 2 >= len(failed) and self.is_complete(minute * 60_000 + 60_000)
        )

    def sessions(self) -> Rows:
        visits = defaultdict(list)
        for request in self.unique:
            visits[request["user"]].append((request["at"], request["page"]))
        found: Rows = Counter()
        for user, all_of in visits.items():
            ordered = sorted(all_of)
            ends = [
                at for at, (visit, following) in enumerate(pairwise(ordered), 1) if following[0] - visit[0] > 600_000
            ]
            for first, after in zip([0, *ends], [*ends, len(ordered)], strict=True):
                session = ordered[first:after]
                if self.is_complete(session[-1][0] + 600_001):
                    found[user, session[0][0], session[-1][0], " ".join(page for _, page in session)] += 1
        return found

    def traffic(self) -> dict[str, tuple[int, int]]:
        totals: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for request in self.unique:
            requests, sent = totals[request["user"]]
            totals[request["user"]] = (requests + 1, sent + request["bytes"])
        return dict(totals)


def _request(history: random.Random, number: int) -> Request:
    """Users come and go; now and then a page fails for a while."""
    at = START_MS + number * 1_500 * STEP_MS + history.randrange(1_500) * STEP_MS
    page = history.choice(_PAGES[: 2 + number // 60 % 5])
    fails = number // 40 % 3 == 1 and history.random() < 0.8
    user = f"user-{(number // 25) % 4 * 3 + history.randrange(3)}"
    status = 503 if fails else history.choice((200, 200, 200, 304, 404))
    facts = {"user": user, "page": page, "status": status, "bytes": history.randrange(100_000)}
    return {"request_id": f"request-{number}", "at": at, **facts}
