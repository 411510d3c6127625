"""A strict model takes no value of another type, and any value where its field may have any."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import ValidationError

from keyscale.jobs.protocol.strict_model import StrictModel


class Change(StrictModel):
    value: Any = None
    count: int | None = None


@pytest.mark.parametrize("value", [True, False, [True], {"a": False}, 1, None])
def test_a_field_of_any_type_takes_true_and_false(value: Any) -> None:
    assert Change(value=value).value is value


@pytest.mark.parametrize("fields", [{"count": True}, {"value": "\0"}, {"value": {"\0": 1}}])
def test_true_is_no_number_and_a_nul_is_no_text(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Change.model_validate(fields)


def test_a_value_may_be_nested_more_deeply_than_functions_may_call_themselves() -> None:
    innermost: list[Any] = ["\0"]
    value: list[Any] = innermost
    for _ in range(2 * sys.getrecursionlimit()):
        value = [value]
    with pytest.raises(ValidationError, match="cannot be stored"):
        Change.model_validate({"value": value})
    innermost.clear()
    assert Change.model_validate({"value": value}).value is value
