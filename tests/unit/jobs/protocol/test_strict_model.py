"""A strict model takes no value of another type, and any value where its field may have any."""

from __future__ import annotations

import sys
from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError

from keyscale.jobs.protocol.strict_model import StrictModel


class Change(StrictModel):
    value: Any = None
    count: int | None = None
    is_dry: bool = False
    state: Literal["SAVEPOINT", "CURRENT"] = "SAVEPOINT"
    job_ids: list[str] = Field(default_factory=list)


@pytest.mark.parametrize("value", [True, False, [True], {"a": False}, 1, None])
def test_a_field_of_any_type_takes_true_and_false(value: Any) -> None:
    assert Change(value=value).value is value


@pytest.mark.parametrize(
    "fields",
    [
        {"value": "\0"},
        {"value": {"\0": 1}},
        {"count": True},
        {"count": "2"},
        {"count": 2.5},
        {"is_dry": 0},
        {"is_dry": "true"},
        {"is_dry": None},
        {"state": 1},
        {"job_ids": "a"},
        {"job_ids": [1]},
    ],
)
def test_a_value_of_another_type_and_a_nul_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        Change.model_validate(fields)
    assert refused.value.errors()[0]["loc"][0] in fields


def test_a_value_may_be_nested_more_deeply_than_functions_may_call_themselves() -> None:
    innermost: list[Any] = ["\0"]
    value: list[Any] = innermost
    for _ in range(2 * sys.getrecursionlimit()):
        value = [value]
    with pytest.raises(ValidationError, match="cannot be stored"):
        Change.model_validate({"value": value})
    innermost.clear()
    assert Change.model_validate({"value": value}).value is value


def test_a_whole_number_is_an_integer_and_any_value_stays_as_it_is() -> None:
    change = Change.model_validate({"count": 2.0, "value": 2.0})
    assert (repr(change.count), repr(change.value)) == ("2", "2.0")
