"""The databases of a test with the mark `either_database`: in memory if the test is fast, PostgreSQL if it is real."""

from __future__ import annotations

import pytest

KIND = "database_kind"
"""The fixture that says which database a test gets."""
MEMORY, POSTGRES = "memory", "postgres"


def parametrize(test: pytest.Metafunc) -> None:
    """Makes two tests of a test with the mark, unless the test is `real`."""
    marks = {mark.name for mark in test.definition.iter_markers()}
    if "either_database" in marks and KIND in test.fixturenames:
        postgres = pytest.param(POSTGRES, marks=pytest.mark.real)
        test.parametrize(KIND, [postgres] if "real" in marks else [MEMORY, postgres])


def is_in_memory(item: pytest.Item) -> bool:
    """Returns whether a test has the database in memory."""
    called = getattr(item, "callspec", None)
    return called is not None and called.params.get(KIND) == MEMORY
