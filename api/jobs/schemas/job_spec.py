"""Specifications of jobs in requests and answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from keyscale.jobs.protocol.redaction import redact_named
from keyscale.jobs.protocol.specification import JobSpec, ReceivedSpec, patched

from ...shapes import Request
from .nullable_settings import DescribedBy, nullable


def without_nulls(value: Any, model: type[BaseModel] = JobSpec) -> Any:
    """Returns settings without nulls, which stand for defaults."""
    return patched({}, value, model) if isinstance(value, dict) else value


def _masked(spec: JobSpec) -> JobSpec:
    texts = {name: value for name, value in spec.parameters.items() if isinstance(value, str)}
    masked = {name: redact_named(name, value) for name, value in texts.items()}
    return spec.model_copy(update={"parameters": {**spec.parameters, **masked}})


NewSpec = Annotated[
    JobSpec, BeforeValidator(without_nulls), DescribedBy(nullable(JobSpec, "New", frozenset({"artifact_id", "type"})))
]
"""The specification of a new job."""

SpecPatch = Annotated[
    dict[str, Any],
    DescribedBy(nullable(JobSpec)),
    Field(
        default_factory=dict,
        description=(
            "A JSON merge patch (RFC 7386) of the specification, `JobSpec`. Settings that it leaves out stay. null"
            " resets a setting to its default, and removes an entry."
        ),
        examples=[{"parallelism": 4, "checkpoints": {"interval_ms": 5000}, "parameters": {"output": None}}],
    ),
]

MaskedSpec = Annotated[
    ReceivedSpec,
    AfterValidator(_masked),
    Field(description="Every setting, with defaults filled in. Values that look like secrets are masked."),
]


class SpecificationChange(Request):
    """A change of a job's specification."""

    spec: SpecPatch
    message: str | None = Field(default=None, max_length=500, description="Why; shown with the revision.")
