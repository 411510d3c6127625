"""A journal appends one entry after the other, also where it goes on from another position."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keyscale.jobs.runtime.driver.journal import Journal
from keyscale.jobs.runtime.retries import Retries
from keyscale.state.objects.errors import StoreUnavailableError


class Log:
    """Notes what is appended and asked; fails some times."""

    def __init__(self) -> None:
        self.appended: list[tuple[int, str]] = []
        self.asked: list[int] = []
        self.failures = 0

    def append(self, position: int, entry: str) -> int:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("away")
        self.appended.append((position, entry))
        return position + 2  # a log may leave positions out

    def is_continued_by_another(self, position: int) -> bool:
        self.asked.append(position)
        return position > 8


def test_entries_follow_each_other_at_the_positions_that_the_log_gives() -> None:
    log = Log()
    journal = Journal(cast("Any", log), 5)
    assert (journal.last_position, journal.is_overtaken()) == (4, False)
    for entry in ("a", "b"):
        journal.append(cast("Any", entry))
    assert (log.appended, journal.last_position) == ([(5, "a"), (7, "b")], 8)
    assert not journal.is_overtaken()
    log.failures = 1
    with pytest.raises(StoreUnavailableError):
        journal.append(cast("Any", "c"))
    assert journal.last_position == 8, "the entry may be in the log, or not"
    patient = journal.with_retries(Retries(60_000, sleep=lambda _: None))
    log.failures = 2
    patient.append(cast("Any", "d"))
    elsewhere = patient.at(20)
    log.failures = 2
    elsewhere.append(cast("Any", "e"))
    assert log.appended[2:] == [(9, "d"), (20, "e")]
    assert (journal.last_position, patient.last_position, elsewhere.last_position) == (8, 10, 21)
    assert elsewhere.is_overtaken()
    assert log.asked == [4, 8, 21]
