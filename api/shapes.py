"""The bases and types that all requests and answers share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from keyscale.jobs.protocol.strict_model import StrictModel

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
JOB_ID_PATTERN = r"^[0-9a-f]{32}$"
OPERATION_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
TEXT_PATTERN = r"^[^\x00]+$"
NUMBER_MAX = (1 << 63) - 1
"""The largest number that a column holds."""

OperationId = Annotated[
    str,
    Field(
        pattern=OPERATION_ID_PATTERN,
        description="Chosen by the client, so that it can repeat a request after a lost answer.",
        examples=["nightly-2026-11-21"],
    ),
]


JobName = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        description="Unique; can be used wherever the API takes a job's id.",
        json_schema_extra={"not": {"pattern": JOB_ID_PATTERN}},
    ),
]

LABEL_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
LABELS_MAX = 50

_LabelPart = Annotated[str, Field(pattern=LABEL_PATTERN)]
Labels = Annotated[
    dict[_LabelPart, _LabelPart],
    Field(
        max_length=LABELS_MAX,
        examples=[{"team": "billing"}],
        json_schema_extra={"additionalProperties": False},  # besides names of the pattern
    ),
]


class Request(StrictModel):
    """Base of requests."""


class Answer(BaseModel):
    """Base of answers."""

    model_config = ConfigDict(frozen=True, from_attributes=True, defer_build=True)


class ListAnswer(Answer):
    """Base of lists."""

    next: str | None = Field(default=None, description="Send it as `after` for the rest of the list; None at the end.")


class FailureAnswer(Answer):
    """Why something failed."""

    code: str
    message: str
    traceback: str | None = None
    operator_uid: str | None = None
    subtask: int | None = None
    advice: str | None = None


def example(**fields: Any) -> ConfigDict:
    """Returns the model configuration that adds an example to the OpenAPI description."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def only_if(name: str, value: str, then: dict[str, Any], otherwise: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the rule of a schema that depends on a field's value.

    Args:
        name: The field.
        value: Its value.
        then: The schema of requests with this value.
        otherwise: The schema of all other requests.
    """
    has_value = {"properties": {name: {"const": value}}, "required": [name]}
    return {"if": has_value, "then": then} | ({} if otherwise is None else {"else": otherwise})
