"""A cursor leads on in its own list alone."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from keyscale.api.control_plane.cursors import Listing, read_cursor, write_cursor
from keyscale.api.errors import CursorInvalidError


@pytest.mark.parametrize(
    ("key", "kinds"),
    [((7, "job-1"), (int, str)), ((0,), (int,)), (("ü/?",), (str,)), ((2**63 - 1, ""), (int, str))],
)
def test_a_cursor_leads_to_the_row_after_its_own(key: tuple[Any, ...], kinds: tuple[type, ...]) -> None:
    cursor = write_cursor(key)
    assert cursor is not None
    assert set(cursor).isdisjoint("=+/ "), "it is a part of a query"
    assert read_cursor(cursor, *kinds) == key
    page = Listing(9, cursor).page(*kinds)
    assert (page.limit, page.after) == (9, key)
    assert Listing(9).page(*kinds).after is None


def test_the_last_part_of_a_list_has_no_cursor() -> None:
    assert write_cursor(None) is None


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "?",
        "é",
        encoded("no JSON"),
        encoded("[" * 100_000),
        *(
            encoded(json.dumps(key))
            for key in (7, {"0": 7, "1": "x"}, [], [7], [7, "x", 1], ["7", "x"], [7, 8], [True, "x"], [7.0, "x"])
        ),
        *(encoded(json.dumps(key)) for key in ([-1, "x"], [2**63, "x"], [7, "a\0b"], [None, "x"])),
    ],
    ids=lambda cursor: cursor[:20],
)
def test_a_cursor_of_another_list_is_refused(cursor: str) -> None:
    with pytest.raises(CursorInvalidError):
        read_cursor(cursor, int, str)
