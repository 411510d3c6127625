"""An answer's specification is read by an older client, too."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from keyscale.api.errors import RequestInvalidError, SettingFixedError
from keyscale.api.job_spec import changed, spec_of
from keyscale.api.jobs.schemas.job_spec import MaskedSpec, NewSpec, SpecPatch
from keyscale.db.models import Revision
from keyscale.jobs.protocol.specification import JobSpec

NEWER: dict[str, Any] = {"artifact_id": "a", "later": 1, "checkpoints": {"interval_ms": 500, "later": {"x": 2}}}


def test_a_client_leaves_out_settings_of_a_newer_control_plane() -> None:
    read = TypeAdapter(MaskedSpec).validate_python(NEWER)
    assert (read.artifact_id, read.checkpoints.interval_ms) == ("a", 500)


def test_a_request_with_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="later"):
        TypeAdapter(NewSpec).validate_python(NEWER)


def test_null_stands_for_the_default_of_a_new_job_but_not_for_a_misspelt_setting() -> None:
    new = TypeAdapter(NewSpec).validate_python(
        {"artifact_id": "a", "secrets": None, "checkpoints": {"timeout_ms": None}}
    )
    assert (new.secrets, new.checkpoints.timeout_ms) == ([], 600_000)
    with pytest.raises(ValidationError, match="later"):
        TypeAdapter(NewSpec).validate_python({"artifact_id": "a", "later": None})


def test_requests_are_described_with_every_setting_and_null() -> None:
    patch = TypeAdapter(dict[str, SpecPatch]).json_schema()["$defs"]
    job = patch["PatchedJobSpec"]
    assert job["properties"].keys() == JobSpec.model_fields.keys()
    assert (job["additionalProperties"], "required" in job) == (False, False)
    assert job["properties"]["parallelism"]["anyOf"] == [
        {"type": "integer", "minimum": 1, "maximum": 32768},
        {"type": "null"},
    ]
    assert job["properties"]["checkpoints"]["anyOf"][0] == {"$ref": "#/$defs/PatchedCheckpointSettings"}
    assert "type" not in patch["PatchedFixedDelayRestart"].get("required", [])


def test_a_new_job_is_described_with_a_program_and_a_type_of_restart_strategy() -> None:
    new = TypeAdapter(dict[str, NewSpec]).json_schema()["$defs"]
    assert new["NewJobSpec"]["required"] == ["artifact_id"]
    assert new["NewJobSpec"]["properties"]["artifact_id"]["type"] == "string"
    assert new["NewFixedDelayRestart"]["required"] == ["type"]
    assert "PatchedCheckpointSettings" in new


def test_a_patch_changes_what_it_names_and_nothing_that_a_job_keeps() -> None:
    present = JobSpec(artifact_id="a", parallelism=2, max_parallelism=64, parameters={"day": "1", "input": "/in"})
    wanted = changed(present, {"artifact_id": "b", "parameters": {"day": None}, "max_parallelism": 64})
    assert wanted == present.model_copy(update={"artifact_id": "b", "parameters": {"input": "/in"}})
    with pytest.raises(SettingFixedError, match="max_parallelism is 64, and stays so"):
        changed(present, {"artifact_id": "b", "max_parallelism": 128})
    with pytest.raises(RequestInvalidError) as refused:
        changed(present, {"parallelism": 0})
    assert [each["field"] for each in refused.value.more["errors"]] == ["body.spec.parallelism"]


def test_a_stored_specification_is_read_without_the_settings_that_are_gone() -> None:
    assert spec_of(Revision(spec={"artifact_id": "a", "parallelism": 3, "gone": 1})) == JobSpec(
        artifact_id="a", parallelism=3
    )
