"""The trace of an operation leads from its request to the first batch of its attempt."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.telemetry.otlp_traces import EndedOperation, trace_document
from keyscale.db.models import Attempt, Operation
from keyscale.vocabulary import OperationKind, OperationStatus


def operation(**more: Any) -> Operation:
    known: dict[str, Any] = {
        "id": "o1",
        "job_id": "j1",
        "kind": OperationKind.RESCALE,
        "status": OperationStatus.COMPLETED,
        "requested_at_ms": 1000,
        "requested_by": "ada",
        "ended_at_ms": 9000,
        "phases": [
            {"phase": "SAVEPOINT", "started_at_ms": 1500, "ended_at_ms": 2000},
            {"phase": "VERIFY", "started_at_ms": 2000, "ended_at_ms": None},
        ],
    }
    return Operation(**known | more)


ATTEMPT = Attempt(number=3, parallelism=4, created_at_ms=1200, restored_at_ms=5000, first_commit_at_ms=8000)


def spans(ended: EndedOperation) -> list[dict[str, Any]]:
    [of_replica] = trace_document([ended], "http://here")["resourceSpans"]
    found: list[dict[str, Any]] = of_replica["scopeSpans"][0]["spans"]
    return found


def test_a_trace_leads_from_the_request_to_the_first_batch() -> None:
    found = spans(EndedOperation(operation(), "flights", ATTEMPT, "r1"))
    names = {span["spanId"]: span["name"] for span in found}
    tree = [(span["name"], names.get(span.get("parentSpanId", ""))) for span in found]
    root = "RESCALE flights"
    assert tree == [
        ("request RESCALE", None),
        (root, "request RESCALE"),
        ("SAVEPOINT", root),
        ("VERIFY", root),
        ("attempt 3", root),
        ("first batch", "attempt 3"),
    ]
    assert len({span["traceId"] for span in found}) == 1
    times = {span["name"]: (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])) for span in found}
    assert times["VERIFY"] == (2_000_000_000, 9_000_000_000)
    assert times["first batch"] == (5_000_000_000, 8_000_000_000)
    told = [
        {each["key"].removeprefix("keyscale."): each["value"]["stringValue"] for each in span["attributes"]}
        for span in found
    ]
    common = {"job_id": "j1", "job_name": "flights", "operation_id": "o1"}
    of_attempt = {**common, "attempt": "3", "parallelism": "4"}
    assert told == [
        {**common, "request_id": "r1", "enduser.id": "ada"},
        {**common, "status": "COMPLETED"},
        common,
        common,
        of_attempt,
        of_attempt,
    ]
    assert [span["kind"] for span in found] == [2, 1, 1, 1, 1, 1], "the request is a server's"


def test_the_same_operation_has_the_same_ids_whoever_pushes_it_and_another_has_others() -> None:
    first, again = (spans(EndedOperation(operation(), "flights", None, None)) for _ in range(2))
    other = spans(EndedOperation(operation(id="o2"), "flights", None, None))
    assert [span["spanId"] for span in first] == [span["spanId"] for span in again]
    assert not {span["spanId"] for span in first} & {span["spanId"] for span in other}
    assert (len(first[0]["traceId"]), len(first[0]["spanId"])) == (32, 16)


@pytest.mark.parametrize(
    ("status", "code"),
    [(OperationStatus.COMPLETED, 1), (OperationStatus.FAILED, 2), (OperationStatus.CANCELLED, 0)],
)
def test_the_status_of_an_operation_is_its_spans(status: OperationStatus, code: int) -> None:
    failed = operation(status=status, failure={"code": "X", "message": "why"} if code == 2 else None, phases=[])
    span = spans(EndedOperation(failed, "flights", None, None))[1]
    assert span["status"] == {"code": code, "message": "why" if code == 2 else ""}


def test_clocks_that_differ_make_no_span_that_ends_before_it_begins() -> None:
    late = Attempt(number=3, parallelism=4, created_at_ms=6000, restored_at_ms=5000, first_commit_at_ms=4000)
    for span in spans(EndedOperation(operation(), "flights", late, None)):
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])


def moments(found: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Returns the begin and the end of each span in milliseconds."""
    return {
        span["name"]: (int(span["startTimeUnixNano"]) // 1_000_000, int(span["endTimeUnixNano"]) // 1_000_000)
        for span in found
    }


def test_each_span_has_its_own_begin_and_end() -> None:
    assert moments(spans(EndedOperation(operation(), "flights", ATTEMPT, "r1"))) == {
        "request RESCALE": (1000, 1000),
        "RESCALE flights": (1000, 9000),
        "SAVEPOINT": (1500, 2000),
        "VERIFY": (2000, 9000),
        "attempt 3": (1200, 5000),
        "first batch": (5000, 8000),
    }
    endless = moments(spans(EndedOperation(operation(ended_at_ms=None), "flights", None, None)))
    assert endless["RESCALE flights"] == (1000, 1000)


@pytest.mark.parametrize(
    ("times", "ends_ms"),
    [
        ({"restored_at_ms": 5000, "running_at_ms": 6000, "ended_at_ms": 7000}, 5000),
        ({"running_at_ms": 6000, "ended_at_ms": 7000}, 6000),
        ({"ended_at_ms": 7000}, 7000),
        ({}, 9000),
    ],
)
def test_an_attempt_starts_until_it_has_restored_or_runs_or_has_ended(times: dict[str, int], ends_ms: int) -> None:
    attempt = Attempt(number=3, parallelism=4, created_at_ms=1200, **times)
    found = moments(spans(EndedOperation(operation(), "flights", attempt, None)))
    assert found["attempt 3"] == (1200, ends_ms)
    assert "first batch" not in found


def test_a_failed_operation_tells_its_code_as_the_type_of_the_error() -> None:
    failed = operation(status=OperationStatus.FAILED, failure={"code": "X", "message": "why"}, phases=[])
    told = [
        {each["key"]: each["value"]["stringValue"] for each in span["attributes"]}
        for span in spans(EndedOperation(failed, "flights", None, None))
    ]
    assert [each.get("error.type") for each in told] == [None, "X"]
    assert ["keyscale.request_id" in each for each in told] == [False, False], "the request is unknown"
