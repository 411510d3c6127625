"""The OpenAPI document has a form for each way to name the snapshot that a job starts from."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from keyscale.api.jobs.schemas.job import CloneRequest, JobRequest
from keyscale.api.jobs.schemas.restore import RestoreRequest, RestoreSource
from keyscale.api.operations.schemas.any_operation import StartOperation
from keyscale.api.operations.schemas.operation import StartRequest

GIVEN: dict[str, Any] = {
    "checkpoint_id": 7,
    "savepoint_id": "nightly",
    "location": "file:///store/manifest.json",
    "before_ms": 9,
    "latest": True,
}
SCHEMA = RestoreSource.model_json_schema()


def test_each_field_that_names_a_snapshot_has_a_form_of_its_own() -> None:
    assert [form["required"] for form in SCHEMA["oneOf"]] == [[name] for name in GIVEN]
    assert [name for form in SCHEMA["oneOf"] for name in form["properties"] if name != "job"] == list(GIVEN)
    assert not {"properties", "additionalProperties"} & SCHEMA.keys(), "they would forbid every form"


def test_the_time_zero_names_a_snapshot() -> None:
    assert RestoreSource(before_ms=0).before_ms == 0


@pytest.mark.parametrize("request_", [JobRequest, StartRequest, StartOperation])
def test_a_claim_is_described_with_its_source(request_: type[RestoreRequest]) -> None:
    assert request_.model_json_schema()["then"]["required"] == ["restore_from"]
    assert "then" not in CloneRequest.model_json_schema(), "it has a source by default"


@pytest.mark.parametrize("name", GIVEN)
def test_a_form_is_accepted_as_it_is_described_and_together_with_another_form_refused(name: str) -> None:
    [form] = [each for each in SCHEMA["oneOf"] if each["required"] == [name]]
    job = {"job": "flights"} if "job" in form["properties"] else {}
    assert RestoreSource.model_validate({name: GIVEN[name], **job}).model_dump()[name] == GIVEN[name]
    other = "latest" if name != "latest" else "checkpoint_id"
    with pytest.raises(ValidationError, match="give exactly one of"):
        RestoreSource.model_validate({name: GIVEN[name], other: GIVEN[other]})
