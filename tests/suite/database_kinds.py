"""The databases of a test with the mark `either_database`: in memory if the test is fast, PostgreSQL if it is real."""

from __future__ import annotations

import re

import pytest

KIND = "database_kind"
"""The fixture that says which database a test gets."""
MEMORY, POSTGRES = "memory", "postgres"
_MEMORY_PART = re.compile(rf"(?<=[\[-]){MEMORY}(?=[]-])")  # of a test's id


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


def superseded(items: list[pytest.Item]) -> set[str]:
    """Returns the ids of tests in memory that also run on PostgreSQL in the same run."""
    chosen = {item.nodeid for item in items if not is_in_memory(item)}
    on_postgres = {
        item.nodeid: _MEMORY_PART.sub(POSTGRES, item.nodeid, count=1) for item in items if is_in_memory(item)
    }
    return {nodeid for nodeid, other in on_postgres.items() if other in chosen}
