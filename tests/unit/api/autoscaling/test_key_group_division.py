"""A job that divides its key groups by size does so by its newest checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.autoscaling import key_group_division as service
from keyscale.api.autoscaling.key_group_division import division_by_size
from keyscale.state.doors.objects import StoreUnavailableError

SESSION: Any = None


@pytest.mark.parametrize(
    ("division", "error", "expected"),
    [
        ("BY_SIZE", None, "the division"),
        ("BY_COUNT", None, None),
        (None, None, None),
        ("BY_SIZE", IndexError(), None),
        ("BY_SIZE", StoreUnavailableError("sizes that make no sense"), None),
    ],
)
def test_the_division_is_of_the_newest_checkpoint_of_a_job_by_size(
    monkeypatch: pytest.MonkeyPatch, division: str | None, error: Exception | None, expected: str | None
) -> None:
    def division_of(*of: Any) -> str:
        assert of == ("the parts", 16)
        if error is not None:
            raise error
        return "the division"

    newest = {("job", 1): [SimpleNamespace(checkpoint_id=7)]}
    monkeypatch.setattr(service.checkpoints, "latest_with_parts", lambda _, *of: newest[of])
    monkeypatch.setattr(service.checkpoints, "parts_of", lambda _, *of: "the parts" if of == ("job", [7], None) else "")
    monkeypatch.setattr(service, "division_of", division_of)
    spec = {} if division is None else {"key_group_division": division}
    job: Any = SimpleNamespace(id="job", max_parallelism=16, spec=spec)
    assert division_by_size(SESSION, job) == expected
