"""A strict model takes no value of another type, and any value where its field may have any."""

from __future__ import annotations

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
