"""Marks the parameters of a test which only the exhaustive tier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def short_form(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Returns all values, and marks the values that are not kept."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.exhaustive) for value in values]
