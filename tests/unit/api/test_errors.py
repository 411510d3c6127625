from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from keyscale.api.errors import (
    ApiError,
    OperationInProgressError,
    RequestInvalidError,
    RevisionConflictError,
    StoreUnavailableError,
)
from keyscale.api.operations.schemas.any_operation import AnyOperation


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("it is away"),
        RequestInvalidError("no"),
        RequestInvalidError("no", [{"field": "name", "message": "missing"}]),
        OperationInProgressError("a rescale", "o-1"),
        RevisionConflictError("older", 3),
    ],
)
def test_an_error_survives_pickling_with_its_fields(error: ApiError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), copy.detail, copy.more) == (type(error), error.detail, error.more)


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"kind": "NOPE"}, "body.kind", "Input should be one of START, STOP,"),
        ({"id": "x"}, "body.kind", "Field required"),
        ({"kind": "RESCALE", "parallelism": 2, "revision": 1}, "body.RESCALE.revision", "Extra inputs"),
    ],
)
def test_a_request_of_no_known_kind_is_refused_in_words_of_the_api(
    body: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ValidationError) as failed:
        TypeAdapter(AnyOperation).validate_python(body)
    [wrong] = RequestInvalidError.of(failed.value, "body").more["errors"]
    assert (wrong["field"], wrong["message"][: len(message)]) == (field, message)
    assert "NOPE" not in wrong["message"]
    assert "<" not in wrong["message"]
