from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import BaseModel, BeforeValidator

from keyscale.jobs.protocol.messages import AttachRequest, CheckpointReport, Failure, Heartbeat
from keyscale.jobs.protocol.storable_text import is_storable, storable


@pytest.mark.parametrize(
    ("text", "stored"),
    [("plate \x00!", "plate \\x00!"), ("\ud800", "\\ud800"), ("a\udfff", "a\\udfff"), ("né 😀\n", "né 😀\n")],
)
def test_what_cannot_be_stored_is_escaped_and_the_rest_stays(text: str, stored: str) -> None:
    assert storable(text) == stored
    assert is_storable(stored)
    assert is_storable(text) == (text == stored)


def test_a_driver_can_send_a_failure_whatever_an_exception_says() -> None:
    failure = Failure(code="JOB_FUNCTION_FAILED", message="\ud800\x00", traceback="line\x00")
    assert Heartbeat(state="FAILED", failure=failure).model_dump_json()
    assert (failure.message, failure.traceback) == ("\\ud800\\x00", "line\\x00")


@pytest.mark.parametrize("message", [AttachRequest, Heartbeat, CheckpointReport])
def test_every_text_that_a_driver_sends_is_storable(message: type[BaseModel]) -> None:
    unfit = [
        place
        for place, annotation, metadata in texts(message, message.__name__)
        if not is_made_fit(annotation, metadata)
    ]
    assert unfit == []


def texts(message: type[BaseModel], place: str) -> list[tuple[str, Any, list[Any]]]:
    """The fields of text of a message and of the messages inside it."""
    found = []
    for name, field in message.model_fields.items():
        for part in parts(field.annotation):
            if part is str:
                found.append((f"{place}.{name}", field.annotation, field.metadata))
            elif isinstance(part, type) and issubclass(part, BaseModel):
                found += texts(part, f"{place}.{name}")
    return found


def parts(annotation: Any) -> list[Any]:
    inner = [part for part in get_args(annotation) if not isinstance(part, (str, BeforeValidator))]
    return [annotation] if not inner else [found for part in inner for found in parts(part)]


def is_made_fit(annotation: Any, metadata: list[Any]) -> bool:
    return "BeforeValidator" in repr(annotation) + repr(metadata)
