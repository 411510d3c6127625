"""An answer's specification is read by an older client, too."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from keyscale.api.jobs.schemas.job_spec import MaskedSpec, NewSpec

NEWER: dict[str, Any] = {"artifact_id": "a", "later": 1, "checkpoints": {"interval_ms": 500, "later": {"x": 2}}}


def test_a_client_leaves_out_settings_of_a_newer_control_plane() -> None:
    read = TypeAdapter(MaskedSpec).validate_python(NEWER)
    assert (read.artifact_id, read.checkpoints.interval_ms) == ("a", 500)


def test_a_request_with_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="later"):
        TypeAdapter(NewSpec).validate_python(NEWER)
