"""Parts of logs hold whole lines, so that no secret is cut in two, and searches find what readers may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.services import logs
from keyscale.api.services.logs import MATCH_CHARACTERS_MAX, search, whole_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

LOG = b"first\nsecond line\nthird\nunfinished"
SECRET = {"KEYSCALE_JOB_SECRET_ORDERS": "of-the-orders"}


def reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: content[offset : offset + length]


def lines(begin: int, length: int, *, is_whole: bool = True) -> tuple[int, int, bytes]:
    found = whole_lines(reader(LOG), len(LOG), begin, length, is_whole=is_whole)
    return found.begin, found.end, found.content


def test_a_part_begins_and_ends_with_whole_lines() -> None:
    assert lines(0, 1000) == (0, len(LOG), LOG)
    assert lines(0, 1000, is_whole=False) == (0, 24, b"first\nsecond line\nthird\n")
    assert lines(3, 1000, is_whole=False) == (6, 24, b"second line\nthird\n")
    assert lines(6, 14) == (6, 18, b"second line\n")
    assert lines(0, 8) == (0, 6, b"first\n")


def test_a_reader_that_follows_gets_every_line_once_however_short_its_parts() -> None:
    for length in range(12, 40):
        at, seen = 0, b""
        for _ in range(20):
            found = whole_lines(reader(LOG), len(LOG), at, length)
            at, seen = found.end, seen + found.content
        assert (at, seen) == (len(LOG), LOG), length


def test_a_line_longer_than_a_part_does_not_stop_a_reader() -> None:
    content = b"x" * 50 + b"\nlast\n"
    at = 0
    for _ in range(20):
        at = whole_lines(reader(content), len(content), at, 10).end
    assert at == len(content)


def test_an_offset_beyond_the_end_is_the_end() -> None:
    assert lines(10_000, 10) == (len(LOG), len(LOG), b"")


def test_a_search_finds_lines_with_their_offsets_in_any_case() -> None:
    end, found = search(reader(LOG), len(LOG), 0, "LINE", {})
    assert (end, [(each.offset, each.text) for each in found]) == (len(LOG), [(6, "second line")])
    _, found = search(reader(LOG), len(LOG), 7, "line", {})
    assert found == []


def test_a_search_cannot_find_out_a_secret() -> None:
    content = b"the key is of-the-orders\n"
    _, found = search(reader(content), len(content), 0, "key", SECRET)
    assert [each.text for each in found] == ["the key is *****"]
    assert search(reader(content), len(content), 0, "of-the", SECRET)[1] == []


def test_a_search_looks_at_a_limited_part_and_returns_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"hit\n" * 100
    monkeypatch.setattr(logs, "MATCHES_MAX", 10)
    end, found = search(reader(content), len(content), 0, "hit", {})
    assert (end, len(found), found[-1].offset) == (40, 10, 36)
    monkeypatch.setattr(logs, "MATCHES_MAX", 1000)
    monkeypatch.setattr(logs, "SEARCHED_BYTES_MAX", 100)
    monkeypatch.setattr(logs, "_WINDOW_BYTES", 40)
    end, found = search(reader(content), len(content), 0, "hit", {})
    assert (end, len(found)) == (120, 30)


def test_a_search_ends_where_a_log_has_become_shorter() -> None:
    """The older part of a log that grows too long is deleted, perhaps during a search."""
    reads = 0

    def read(_offset: int, _length: int) -> bytes:
        nonlocal reads
        reads += 1
        return b""

    assert search(read, 10_000, 100, "hit", {}) == (100, [])
    assert reads < 10


def test_of_a_long_line_the_part_with_the_text_is_returned() -> None:
    content = b"x" * 10_000 + b" hit " + b"y" * 10_000 + b"\n" + b"hit" + b"z" * 5000
    _, found = search(reader(content), len(content), 0, "hit", {})
    assert [(each.offset, "hit" in each.text, len(each.text)) for each in found] == [
        (0, True, MATCH_CHARACTERS_MAX),
        (20_006, True, MATCH_CHARACTERS_MAX),
    ]
