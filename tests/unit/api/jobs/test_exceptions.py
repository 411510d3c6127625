"""An answer has as many exceptions as its size allows, and at least one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.jobs import exceptions
from keyscale.api.jobs.exceptions import ANSWER_CHARACTERS_MAX, rows_that_fit
from keyscale.db.models import JobException
from keyscale.db.repositories.pages import Page, PageRequest

HALF = ANSWER_CHARACTERS_MAX // 2


@pytest.mark.parametrize(
    ("sizes", "fit"),
    [
        ([], 1),
        ([2 * ANSWER_CHARACTERS_MAX], 1),
        ([HALF, HALF], 2),
        ([HALF, HALF + 1, 1], 1),
        ([HALF, HALF, 1], 2),
        ([1, 1, 1], 3),
    ],
)
def test_the_texts_of_an_answer_fill_it_up_to_its_limit(sizes: list[int], fit: int) -> None:
    rows = [JobException(message="m", traceback="t" * (size - 1)) for size in sizes]
    assert rows_that_fit(rows) == fit
    without = [JobException(message="m" * size, traceback=None) for size in sizes]
    assert rows_that_fit(without) == fit


def test_the_rest_of_a_list_follows_the_last_exception_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"at_ms": 1, "attempt": 2, "code": "C", "operator_uid": None, "subtask": None, "traceback": None}
    rows = [JobException(id=number, message="m" * HALF, **known) for number in (9, 7, 4)]
    asked: list[Any] = []

    def list_page(_: Any, job_id: str, page: PageRequest) -> Page[JobException]:
        asked.append((job_id, page))
        return Page(rows, (4,))

    monkeypatch.setattr(exceptions, "require_job_id", lambda _, name: {"flights": "job"}[name])
    monkeypatch.setattr(exceptions.exceptions, "list_page", list_page)
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    found = exceptions.list_of(context, "flights", Listing(3, write_cursor((12,))))
    assert ([each.id for each in found.exceptions], found.next) == ([9, 7], write_cursor((7,)))
    assert asked == [("job", PageRequest(3, (12,)))]
    rows.pop()
    whole = exceptions.list_of(context, "flights", Listing(2))
    assert ([each.id for each in whole.exceptions], whole.next) == ([9, 7], write_cursor((4,)))
