"""Chooses the parameters of a test that the suite runs; the others have a command of their own, `-m exhaustive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def short_form(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """All values, those that are not kept being marked."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.exhaustive) for value in values]
