"""Diagnostics, as the API takes and shows them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, Strict, model_validator

from keyscale.vocabulary import DiagnosticKind, DiagnosticStatus

from ..shapes import Answer, FailureAnswer, ListAnswer, OperationId, Request, only_if


class DiagnosticRequest(Request):
    """A look into a running job."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "THREAD_DUMP"}],
            **only_if(
                *("kind", "SAMPLE"),
                {"properties": {"operator_uid": {"type": "string"}}, "required": ["operator_uid"]},
            ),
        }
    )

    kind: Annotated[DiagnosticKind, Strict(False)]
    id: OperationId | None = None
    duration_ms: int = Field(
        default=10_000,
        ge=1000,
        le=60_000,
        description="With PROFILE: how long stacks are counted. With SAMPLE: how long to wait for records.",
    )
    operator_uid: str | None = Field(default=None, max_length=100, description="With SAMPLE, required: the operator.")
    rows: int = Field(
        default=10, ge=1, le=100, description="With SAMPLE: the most records that the operator reads, and emits."
    )
    with_values: bool = Field(
        default=True, description="With SAMPLE: false replaces each value by its type and a hash."
    )

    @model_validator(mode="after")
    def _names_an_operator(self) -> Self:
        if self.kind is DiagnosticKind.SAMPLE and self.operator_uid is None:
            raise ValueError("a SAMPLE needs operator_uid")
        return self


class DiagnosticPartAnswer(Answer):
    """A part of a diagnostic, such as the stacks of one process."""

    name: str
    text: str = Field(description="Known secrets are masked.")


class DiagnosticSummaryAnswer(Answer):
    """A diagnostic without what it shows."""

    id: str
    job_id: str
    attempt: int = Field(description="The attempt whose driver takes it.")
    kind: DiagnosticKind
    status: DiagnosticStatus
    requested_at_ms: int
    requested_by: str
    ended_at_ms: int | None
    failure: FailureAnswer | None = Field(description="Why it shows nothing, if it has failed.")


class DiagnosticAnswer(DiagnosticSummaryAnswer):
    """A diagnostic of a job."""

    parts: list[DiagnosticPartAnswer] = Field(description="What it shows; empty until it is completed.")


class DiagnosticList(ListAnswer):
    """The newest 20 diagnostics of a job in the last hour."""

    diagnostics: list[DiagnosticSummaryAnswer]
