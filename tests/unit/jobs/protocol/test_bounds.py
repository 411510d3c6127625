"""Every number that a user or a driver sends has bounds: one without could overflow a column, a clock or a timer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from keyscale.jobs.protocol.messages import (
    AttachRequest,
    CheckpointReport,
    DriverMetrics,
    Heartbeat,
    LiveRescale,
    ReportedSeries,
)
from keyscale.jobs.protocol.specification import CheckpointSettings, RestartStrategy
from keyscale.user_series import RESERVED_LABELS
from keyscale.vocabulary import RescalePhase

if TYPE_CHECKING:
    from collections.abc import Iterator

SENT = [AttachRequest, CheckpointReport, CheckpointSettings, Heartbeat, RestartStrategy]


def whole_numbers(schema: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place of a JSON schema where a whole number may be."""
    if isinstance(schema, list):
        for part in schema:
            yield from whole_numbers(part, place)
    elif isinstance(schema, dict):
        if schema.get("type") == "integer":
            yield place, schema
        for name, part in schema.items():
            yield from whole_numbers(part, f"{place}.{name}")


@pytest.mark.parametrize("sent", SENT, ids=str)
def test_every_whole_number_has_bounds(sent: Any) -> None:
    found = list(whole_numbers(TypeAdapter(sent).json_schema()))
    assert found
    assert [place for place, schema in found if not {"minimum", "maximum"} <= schema.keys()] == []


@pytest.mark.parametrize("delay_ms", [10**19, -1, 31_536_000_001])
def test_a_delay_out_of_bounds_is_refused(delay_ms: int) -> None:
    with pytest.raises(ValidationError, match="delay_ms"):
        TypeAdapter(RestartStrategy).validate_python({"type": "fixed-delay", "delay_ms": delay_ms})


def test_a_measure_that_is_no_number_is_zero() -> None:
    sent = DriverMetrics.model_validate_json('{"busy_ratio": NaN, "batch_duration_ms": Infinity, "batch_plan_ms": 1.5}')
    assert (sent.busy_ratio, sent.batch_duration_ms, sent.batch_plan_ms) == (0.0, 0.0, 1.5)


@pytest.mark.parametrize("label", sorted(RESERVED_LABELS))
def test_a_users_metric_with_a_label_of_the_platform_is_refused(label: str) -> None:
    series = {"operator": "totals", "name": "orders", "kind": "gauge", "values": [1]}
    ReportedSeries.model_validate({**series, "labels": {"country": "DE"}})
    with pytest.raises(ValidationError, match=f"{label} is a label of the platform"):
        ReportedSeries.model_validate({**series, "labels": {label: "other"}})


def test_the_times_of_a_live_rescale_fit_into_columns() -> None:
    told = {"command_id": "1", "phase": RescalePhase.VERIFY, "from_attempt": 1, "to_attempt": 2, "began_at_ms": 1}
    LiveRescale.model_validate({**told, "switched_at_ms": 2**63 - 1})
    with pytest.raises(ValidationError, match="switched_at_ms"):
        LiveRescale.model_validate({**told, "switched_at_ms": 2**63})


def test_text_about_a_users_metric_can_be_stored() -> None:
    sent = DriverMetrics.model_validate({"user_help": {"orders\x00": "Orders\x00"}})
    assert sent.user_help == {r"orders\x00": r"Orders\x00"}
