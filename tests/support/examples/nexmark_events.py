"""Events for the Nexmark example, and what each of its queries must give of them, computed from all events at once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from keyscale.jobs.examples import nexmark

Event = dict[str, Any]
Rows = Counter[tuple[Any, ...]]

START_MS = 1_700_000_000_000
STEP_MS = 7  # no two events are a session's gap apart to the millisecond, where both answers are right
BOUND_MS = 2_000
_END_AFTER_MS = 3_600_000
_NAMES = dict.fromkeys(nexmark.EVENT_COLUMNS)


@dataclass(frozen=True, slots=True)
class Auctions:
    """A history of an auction house, cut into files; events are out of order by less than BOUND_MS."""

    files: list[list[Event]]

    @classmethod
    def make(cls, seed: int, files: int, events: int) -> Auctions:
        """Seeded. The last file holds one event of each kind, much later than all others: it ends every window."""
        history = random.Random(seed)
        made = _events(history, files * events)
        made.sort(key=lambda event: event["at"] + history.randrange(BOUND_MS))
        cut = [made[at : at + events] for at in range(0, len(made), events)]
        return cls([*cut, _last_events(max(event["at"] for event in made) + _END_AFTER_MS)])

    @property
    def events(self) -> list[Event]:
        return [event for file in self.files for event in file]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    def is_complete(self, end_ms: int) -> bool:
        """Whether the events end a window."""
        return end_ms <= max(event["at"] for event in self.events) - BOUND_MS

    def q1_currency(self) -> Rows:
        return Counter(
            (bid["auction"], bid["bidder"], bid["price"] * 89 // 100, bid["channel"], bid["at"])
            for bid in self.of("bid")
        )

    def q2_selection(self) -> Rows:
        return Counter((bid["auction"], bid["price"]) for bid in self.of("bid") if bid["auction"] % 7 == 0)

    def q3_local_items(self) -> Rows:
        return Counter(
            (person["name"], person["city"], person["state"], auction["id"])
            for person in self.of("person")
            for auction in self.of("auction")
            if person["state"] in {"OR", "ID", "CA"} and auction["seller"] == person["id"] and auction["category"] == 10
        )

    def q4_category_averages(self) -> dict[int, tuple[int, float]]:
        prices = defaultdict(list)
        for auction in self.of("auction"):
            bids = [
                bid["price"]
                for bid in self.of("bid")
                if bid["auction"] == auction["id"] and bid["at"] < auction["expires"]
            ]
            if bids and self.is_complete(auction["expires"]):
                prices[auction["category"]].append(max(bids))
        return {category: (len(all_of), sum(all_of) / len(all_of)) for category, all_of in prices.items()}

    def q5_hot_items(self) -> Rows:
        counts: dict[int, Counter[int]] = defaultdict(Counter)
        for bid in self.of("bid"):
            first = bid["at"] // 2_000 * 2_000 + 2_000
            for end in range(first, first + 10_000, 2_000):
                counts[end][bid["auction"]] += 1
        return Counter(
            (end, auction, count)
            for end, of_window in counts.items()
            for auction, count in of_window.items()
            if self.is_complete(end) and count == max(of_window.values())
        )

    def q7_highest_bids(self) -> Rows:
        windows = defaultdict(list)
        for bid in self.of("bid"):
            windows[bid["channel"], bid["at"] // 10_000].append(bid)
        highest = {
            at: max(bids, key=lambda bid: (bid["price"], -bid["at"], -bid["bidder"], -bid["auction"]))
            for at, bids in windows.items()
        }
        return Counter(
            (
                channel,
                number * 10_000,
                number * 10_000 + 10_000,
                *(bid[name] for name in ("auction", "bidder", "price", "at")),
            )
            for (channel, number), bid in highest.items()
            if self.is_complete(number * 10_000 + 10_000)
        )

    def q8_new_sellers(self) -> Rows:
        found: Rows = Counter()
        for person in self.of("person"):
            number = person["at"] // 10_000
            auctions = [
                auction
                for auction in self.of("auction")
                if auction["seller"] == person["id"] and auction["at"] // 10_000 == number
            ]
            if auctions and self.is_complete(number * 10_000 + 10_000):
                found[person["id"], number * 10_000, number * 10_000 + 10_000, person["name"], len(auctions)] += 1
        return found

    def q11_bidder_sessions(self) -> Rows:
        times = defaultdict(list)
        for bid in self.of("bid"):
            times[bid["bidder"]].append(bid["at"])
        found: Rows = Counter()
        for bidder, all_of in times.items():
            session: list[int] = []
            for at in [*sorted(all_of), None]:
                if session and (at is None or at - session[-1] > 3_000):
                    if self.is_complete(session[-1] + 3_000):
                        found[bidder, session[0], session[-1] + 3_000, len(session)] += 1
                    session = []
                if at is not None:
                    session.append(at)
        return found

    def q12_bids_by_clock(self) -> Counter[int]:
        return Counter(bid["bidder"] for bid in self.of("bid"))


def _events(history: random.Random, count: int) -> list[Event]:
    """One in ten is a person, two in ten are auctions, whose sellers may come after them."""
    made: list[Event] = []
    people = auctions = 1
    for number in range(count):
        blank, chance = {**_NAMES, "at": START_MS + number * 19 * STEP_MS}, history.random()
        if chance < 0.1:
            person = {"id": people, "name": f"name-{people}", "city": f"city-{people % 13}"}
            made.append({**blank, "kind": "person", **person, "state": history.choice(_STATES)})
            people += 1
        elif chance < 0.3:
            auction = {"id": auctions, "seller": max(0, people + history.randrange(-4, 2))}
            expires = blank["at"] + history.randrange(500, 20_000)
            category = history.choice((10, 11, 12))
            made.append({**blank, "kind": "auction", **auction, "category": category, "expires": expires})
            auctions += 1
        else:
            bid = {"auction": max(0, auctions - history.randrange(1, 10)), "bidder": history.randrange(people)}
            sold = {"price": history.randrange(100, 100_000), "channel": history.choice(("web", "app", "phone"))}
            made.append({**blank, "kind": "bid", **bid, **sold})
    return made


_STATES = ("OR", "ID", "CA", "NY", "WA")


def _last_events(at: int) -> list[Event]:
    person = {"id": 10**9, "name": "last", "city": "last", "state": "OR"}
    auction = {"id": 10**9, "seller": 10**9 + 1, "category": 10, "expires": at + 1}
    bid = {"auction": 7 * 10**9, "bidder": 10**9, "price": 1, "channel": "web"}
    return [
        {**_NAMES, "kind": kind, "at": at, **columns}
        for kind, columns in (("person", person), ("auction", auction), ("bid", bid))
    ]
