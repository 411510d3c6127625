"""The job of the outage demo drops repeats before its service, counts by the payments' own time, and may be slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from keyscale import FileSink
from keyscale.deploy.demo.outage import payments
from keyscale.deploy.demo.outage.payments import CheckedByService, SlowFileSink, Total, build


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(payments.time, "sleep", made.append)
    return made


def test_the_service_takes_its_time_for_each_payment_and_passes_it_on(pauses: list[float]) -> None:
    payment = SimpleNamespace(id="p1", account="a", cents=5, at=7, other="left out")
    service = CheckedByService(12.5)
    for _ in range(2):
        [row] = service.process_element(cast("Any", payment), cast("Any", None))
        assert row == {"id": "p1", "account": "a", "cents": 5, "at": 7}
    assert pauses == [0.0125, 0.0125]


def test_a_slow_sink_takes_its_time_for_each_row_before_it_writes(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSink, "prepare", lambda _, *given: (*given, list(pauses)))
    frame: Any = SimpleNamespace(count=lambda: 40)
    assert SlowFileSink("out", 5.0).prepare(frame, cast("Any", "context")) == (frame, "context", [0.2])


def test_a_total_has_the_number_and_the_sum_of_its_payments_also_of_two_parts() -> None:
    total = Total()
    first = total.add(cast("Any", SimpleNamespace(cents=5)), total.create_accumulator())
    second = total.add(cast("Any", SimpleNamespace(cents=7)), first)
    assert (first, second) == ({"payments": 1, "cents": 5}, {"payments": 2, "cents": 12})
    assert total.get_result(total.merge(first, second)) == {"payments": 3, "cents": 17}


class Stream:
    """A stream that keeps its declarations, in order."""

    def __init__(self, declared: list[tuple[str, Any]], parameters: dict[str, str]) -> None:
        self.declared, self.parameters = declared, parameters

    def __getattr__(self, name: str) -> Any:
        def declare(*given: Any, **named: Any) -> Self:
            self.declared.append((name, *given, *named.items()))
            return self

        return declare


@pytest.mark.parametrize(("sink_ms", "kind"), [("0.0", FileSink), ("2.5", SlowFileSink)])
def test_repeats_are_dropped_before_the_service_and_counts_are_of_the_payments_own_minutes(
    sink_ms: str, kind: type[FileSink]
) -> None:
    declared: list[tuple[Any, ...]] = []
    given = {"servers": "broker:9092", "topic": "payments", "output": "/out", "service_ms": "9.0", "sink_ms": sink_ms}
    build(cast("Any", Stream(declared, given)))
    steps = [step for step in declared if step[0] != "selectExpr" and step[0] != "select" and step[0] != "stream"]
    assert [step[0] for step in steps] == [
        *("read", "key_by", "deduplicate", "uid", "key_by", "process", "uid", "with_timestamps", "sink_to", "uid"),
        *("key_by", "window", "allowed_lateness", "aggregate", "uid", "sink_to", "uid"),
    ]
    (_, source, limit), *_ = steps
    assert limit == ("max_records_per_batch", 2000)
    assert {"broker:9092", "('payments',)"} <= set(map(str, vars(source).values()))
    assert [step[1:] for step in steps if step[0] == "key_by"] == [("id",), ("id",), ("account",)]
    assert [step[1] for step in steps if step[0] == "uid"] == [
        *("unique", "checked", "payments-files"),
        *("counts", "counts-files"),
    ]
    by_name = {step[0]: step[1:] for step in steps}
    assert by_name["process"][0]._service_s == 0.009
    assert by_name["with_timestamps"] == ("at", ("max_out_of_orderness_ms", 5000))
    assert by_name["allowed_lateness"] == (3_600_000,)
    assert isinstance(by_name["aggregate"][0], Total)
    first, second = (step[1] for step in steps if step[0] == "sink_to")
    assert [type(each) for each in (first, second)] == [kind, FileSink]
    assert "/out/payments" in map(str, vars(first).values())
    assert "/out/counts" in map(str, vars(second).values())
    assert getattr(first, "_row_s", 0.0) == float(sink_ms) / 1000
