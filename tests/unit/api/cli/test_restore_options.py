"""The options of a start from a checkpoint or savepoint make one request of what the user names."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli.errors import InvalidArgumentError
from keyscale.api.cli.restore_options import RESTORE_OPTIONS, moment_ms, restore_request

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime.fromisoformat("2026-11-24T10:30:00+00:00")
NOTHING: dict[str, Any] = dict.fromkeys(RESTORE_OPTIONS)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("09:00", "2026-11-24T09:00:00+00:00"),
        ("9:00:05", "2026-11-24T09:00:05+00:00"),
        ("11:00", "2026-11-23T11:00:00+00:00"),
        ("2026-11-20T09:00", "2026-11-20T09:00:00+00:00"),
        ("2026-11-20T09:00+02:00", "2026-11-20T07:00:00+00:00"),
    ],
)
def test_a_time_of_day_is_the_last_one_and_in_utc_as_times_are_shown(text: str, when: str) -> None:
    assert moment_ms(text, NOW) == datetime.fromisoformat(when).timestamp() * 1000


@pytest.fixture
def another_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as host:
        host.setenv("TZ", "XXX-5")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("another_zone")
@pytest.mark.parametrize(("text", "hour"), [("2026-11-20T09:00", 9), ("2026-11-20", 0)])
def test_a_date_without_a_zone_is_in_utc_on_a_host_of_another_zone(text: str, hour: int) -> None:
    assert moment_ms(text, NOW) == datetime(2026, 11, 20, hour, tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize("text", ["25:00", "noon", "", "09:00:61"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        moment_ms(text, NOW)


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, {}),
        ({"source": "12"}, {"restore_from": {"checkpoint_id": 12}}),
        ({"source": "nightly"}, {"restore_from": {"savepoint_id": "nightly"}}),
        (
            {"source": "file:///s/j/chk-1/manifest.json"},
            {"restore_from": {"location": "file:///s/j/chk-1/manifest.json"}},
        ),
        ({"source": "latest"}, {"restore_from": {"latest": True}}),
        ({"from_job": "other"}, {"restore_from": {"latest": True, "job": "other"}}),
        ({"source": "12", "from_job": "other"}, {"restore_from": {"checkpoint_id": 12, "job": "other"}}),
        ({"as_of_ms": 0}, {"restore_from": {"before_ms": 0}}),
        ({"claim_mode": "no-claim"}, {"claim_mode": "NO_CLAIM"}),
        ({"allow_non_restored_state": True}, {"allow_non_restored_state": True}),
    ],
)
def test_what_follows_from_is_known_by_its_form(options: dict[str, Any], body: dict[str, Any]) -> None:
    assert restore_request(**{**NOTHING, **options}) == body


def test_a_start_has_one_source() -> None:
    with pytest.raises(InvalidArgumentError):
        restore_request(**{**NOTHING, "source": "12", "as_of_ms": 5})
