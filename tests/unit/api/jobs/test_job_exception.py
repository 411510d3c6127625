"""The class of an exception is read from its traceback."""

from __future__ import annotations

import pytest

from keyscale.api.jobs.schemas.job_exception import type_of

HEAD = 'Traceback (most recent call last):\n  File "visits.py", line 3, in process_element\n    raise error\n'


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("ValueError: no such airport", "ValueError"),
        ("KeyError", "KeyError"),
        ("psycopg.errors.UndefinedTable: relation", "psycopg.errors.UndefinedTable"),
        ("ValueError: first line\n  and: an indented one\n", "ValueError"),
    ],
)
def test_the_last_line_of_a_traceback_names_the_class(end: str, expected: str) -> None:
    assert type_of(HEAD + end) == expected


def test_without_a_traceback_there_is_none() -> None:
    assert type_of(None) is None
    assert type_of("") is None
