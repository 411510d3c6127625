"""Diagnostics, as the API takes and shows them."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import DiagnosticKind, DiagnosticStatus

from ..shapes import Answer, FailureAnswer, ListAnswer, OperationId, Request, example


class DiagnosticRequest(Request):
    """A look into a running job."""

    model_config = example(kind="THREAD_DUMP")

    kind: DiagnosticKind
    id: OperationId | None = None


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
