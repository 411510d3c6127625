"""Rows: records as functions see them."""

from __future__ import annotations

import pytest

from keyscale.jobs.functions.process_function import row_type


def test_a_row_is_read_by_attribute_by_name_and_by_position() -> None:
    row = row_type(("tailnum", "dep_delay"))(("N1", 2.5))
    assert (row.tailnum, row["dep_delay"], row[0]) == ("N1", 2.5, "N1")
    assert row == ("N1", 2.5)
    assert row[0:1] == ("N1",)
    assert row.as_dict() == {"tailnum": "N1", "dep_delay": 2.5}


def test_columns_whose_names_are_not_identifiers_are_read_by_name() -> None:
    row = row_type(("a b", "class", "_x", "count"))((1, 2, 3, 4))
    assert (row["a b"], row["class"], row["_x"], row.count) == (1, 2, 3, 4)


def test_an_unknown_column_is_an_error() -> None:
    row = row_type(("a",))((1,))
    with pytest.raises(KeyError):
        row["b"]
    with pytest.raises(AttributeError):
        row.b  # noqa: B018 - reading it raises


def test_a_row_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        row_type(("a",))((1,)).a = 2


def test_the_error_of_an_unknown_column_lists_the_columns() -> None:
    row = row_type(("user", "amount"))(("ada", 2))
    with pytest.raises(AttributeError, match="no column 'amont'; it has: user, amount"):
        row.amont  # noqa: B018 - reading it raises
