"""Bills for the bills example, up to a week late and later, and what each result must be, computed from all at once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

Bill = dict[str, Any]

START_MS = 1_700_006_400_000  # a midnight
DAY_MS = 24 * 3_600_000
_FIRST_TOO_LATE_FILE = 3
_ACCOUNTS = 9


@dataclass(frozen=True, slots=True)
class Bills:
    """Bills in files of about a day; some come again, some come days late, a few come too late for their day."""

    files: list[list[Bill]]
    too_late: frozenset[str]

    @classmethod
    def make(cls, seed: int, files: int, bills: int) -> Bills:
        """Seeded. The last file holds one bill, much later than all others: it ends every day."""
        history = random.Random(seed)
        made: list[list[Bill]] = []
        too_late = set()
        for number in range(files):
            file: list[Bill] = []
            for place in range(bills):
                at = START_MS + number * DAY_MS + place * (DAY_MS // bills)
                name = f"bill-{number}-{place}"
                chance = history.random()
                if chance < 0.3:
                    at -= history.randrange(6 * DAY_MS)
                elif chance < 0.4 and number >= _FIRST_TOO_LATE_FILE:
                    at -= history.randrange(20, 40) * DAY_MS
                    too_late.add(name)
                cents = history.randrange(-5_000, 100_000)
                file.append({"bill_id": name, "at": at, "account": history.randrange(_ACCOUNTS), "cents": cents})
            again = [history.choice([*(made[-1] if made else []), *file]) for _ in range(bills // 6)]
            made.append([*file, *again])
        last = {"bill_id": "last", "at": START_MS + (files + 30) * DAY_MS, "account": 0, "cents": 1}
        return cls([*made, [last]], frozenset(too_late))

    @property
    def unique(self) -> list[Bill]:
        return list({bill["bill_id"]: bill for file in self.files for bill in file}.values())

    def totals(self) -> dict[int, tuple[int, int]]:
        return _summed((bill["account"], bill["cents"]) for bill in self.unique)

    def days(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Of each account and day that is over; the last bill's day is not."""
        taken = [bill for bill in self.unique if bill["bill_id"] not in self.too_late and bill["bill_id"] != "last"]
        return _summed(((bill["account"], bill["at"] // DAY_MS * DAY_MS), bill["cents"]) for bill in taken)

    def late(self) -> Counter[str]:
        return Counter(self.too_late)


def _summed(amounts: Any) -> dict[Any, tuple[int, int]]:
    sums: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for key, cents in amounts:
        count, total = sums[key]
        sums[key] = (count + 1, total + cents)
    return dict(sums)
