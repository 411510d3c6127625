"""The points of a series that are read, and how those of one step become one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from sqlalchemy.dialects.postgresql import psycopg

from keyscale.api.errors import RequestInvalidError
from keyscale.api.metrics import series, series_routes
from keyscale.api.metrics.schemas.series import SeriesName
from keyscale.api.metrics.series import SAMPLE_MS, choose_step, is_sample_due, merged
from keyscale.api.metrics.user_metrics import key_of
from keyscale.db.models import Attempt, Checkpoint, Event, SeriesPoint
from keyscale.db.repositories.series import COLUMNS, RETENTIONS, _upsert
from keyscale.jobs.protocol.messages import DriverMetrics, Heartbeat
from keyscale.vocabulary import DriverState
from tests.support.coroutines import run_coroutine

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 100 * DAY_MS


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "points", "expected"),
    [
        (NOW_MS - HOUR_MS, NOW_MS, 360, (10_000, 10_000)),
        (NOW_MS - HOUR_MS, NOW_MS, 100, (10_000, 40_000)),
        (NOW_MS - HOUR_MS // 2, NOW_MS, 1000, (10_000, 10_000)),
        (NOW_MS - DAY_MS, NOW_MS, 1440, (60_000, 60_000)),
        (NOW_MS - DAY_MS, NOW_MS, 300, (60_000, 300_000)),
        (NOW_MS - 5 * HOUR_MS, NOW_MS - 4 * HOUR_MS, 360, (60_000, 60_000)),
        (NOW_MS - 30 * DAY_MS, NOW_MS, 3000, (900_000, 900_000)),
        (NOW_MS - 50 * DAY_MS, NOW_MS - 40 * DAY_MS, 3000, (DAY_MS, DAY_MS)),
        (NOW_MS - 90 * DAY_MS, NOW_MS, 30, (DAY_MS, 3 * DAY_MS)),
        (NOW_MS - 3000 * DAY_MS, NOW_MS - 2999 * DAY_MS, 3000, (DAY_MS, DAY_MS)),
        (NOW_MS, NOW_MS, 1, (10_000, 10_000)),
    ],
)
def test_the_finest_steps_that_are_still_kept_are_read(
    from_ms: int, to_ms: int, points: int, expected: tuple[int, int]
) -> None:
    retention, step_ms = choose_step(from_ms, to_ms, points, NOW_MS)
    assert (retention.step_ms, step_ms) == expected
    assert (to_ms - from_ms) // step_ms <= points


def test_a_ring_holds_the_whole_span_that_it_stands_for() -> None:
    spans = (HOUR_MS, DAY_MS, 30 * DAY_MS, 2 * 365 * DAY_MS)
    assert [retention.span_ms >= span for retention, span in zip(RETENTIONS, spans, strict=True)] == [True] * 4
    assert sum(retention.slots for retention in RETENTIONS) < 6000


def point(at_ms: int, **values: Any) -> SeriesPoint:
    return SeriesPoint(**{**dict.fromkeys(COLUMNS), "at_ms": at_ms, "samples": 1, **values})


def test_of_several_points_the_largest_lag_the_latest_size_and_the_mean_of_rates_count() -> None:
    steps = merged(
        [
            point(20_000, lag_records=7, state_size=50, processed_rate=10.0, input_records=5),
            point(30_000, lag_records=3, state_size=40, processed_rate=40.0, input_records=9, samples=2),
            point(40_000),
        ],
        40_000,
    )
    assert steps.keys() == {0, 40_000}
    first = steps[0]
    assert (first["lag_records"], first["state_size"], first["processed_rate"]) == (7, 40, 30.0)
    assert (first["input_records"], first["lag_ms"]) == (9, None)
    assert set(steps[40_000].values()) == {None}


def test_of_several_points_counts_are_added_and_the_shortest_duration_counts() -> None:
    points = [
        point(20_000, checkpoints_completed=2, checkpoint_duration_min_ms=30, restarts=1),
        point(30_000, checkpoints_completed=3, checkpoint_duration_min_ms=20),
    ]
    [step] = merged(points, 40_000).values()
    assert (step["checkpoints_completed"], step["checkpoint_duration_min_ms"], step["restarts"]) == (5, 20, 1)


@pytest.mark.parametrize(
    ("ring_ms", "step_ms"), [(10_000, 10_000), (10_000, 40_000), (60_000, 60_000), (60_000, 300_000)]
)
@settings(max_examples=40)
@given(passed_ms=st.integers(0, 900_000), late_ms=st.integers(0, 9_000))
def test_steady_records_have_one_rate_in_every_step_also_in_one_that_is_not_over(
    ring_ms: int, step_ms: int, passed_ms: int, late_ms: int
) -> None:
    now = 600_000 + passed_ms
    rows: dict[int, SeriesPoint] = {}
    for at_ms in range(0, now + 1, SAMPLE_MS):
        row_ms = at_ms - at_ms % ring_ms
        rows[row_ms] = point(row_ms, step_ms=ring_ms, input_records=7 * (at_ms + late_ms) // 1000)
    steps = merged(list(rows.values()), step_ms)
    counted = series.counted_at(list(rows.values()), step_ms, now)
    times = list(range(0, now + 1, step_ms))
    first, *rates = series._values(steps, times, step_ms, counted, SeriesName.INPUT_RATE)
    assert first is None, "nothing is known of before"
    assert rates == pytest.approx([7.0] * len(rates))


@pytest.mark.parametrize(
    ("metrics", "last_ms", "at_ms", "state", "is_due"),
    [
        (None, None, 20_000, "RUNNING", True),
        ({}, None, 20_000, "RUNNING", True),
        ({}, 19_999, 20_000, "RUNNING", True),
        ({}, 20_000, 29_999, "RUNNING", False),
        ({}, 20_000, 29_999, "RESTORING", True),
        (None, 20_000, 20_001, "RUNNING", True),
    ],
)
def test_the_first_report_of_each_step_and_of_each_state_is_a_sample(
    metrics: dict[str, Any] | None, last_ms: int | None, at_ms: int, state: str, is_due: bool
) -> None:
    attempt = Attempt(driver_state="RUNNING", heartbeat_at_ms=last_ms, metrics=metrics)
    assert is_sample_due(attempt, Heartbeat(state=DriverState(state)), at_ms) is is_due


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, dict[str, Any]]]:
    """The values that were stored, with their job and time."""
    values: list[tuple[str, int, dict[str, Any]]] = []
    monkeypatch.setattr(series.series, "store", lambda _, job_id, at_ms, given: values.append((job_id, at_ms, given)))
    return values


def test_psycopg_keeps_the_statements_of_samples_and_of_checkpoints(stored: list[Any]) -> None:
    """It splits longer statements into their parts at each execution."""
    session: Any = None
    series.sample(session, "job", DriverMetrics(), None, is_current=True, at_ms=50)
    series.note_checkpoint(session, Checkpoint(job_id="job", state_size=1), 50)
    lengths = [len(str(_upsert(tuple(sorted(given))).compile(dialect=psycopg.dialect()))) for *_, given in stored]
    assert [length <= MAX_CACHED_STATEMENT_LENGTH for length in lengths] == [True, True]
    assert len(str(_upsert(COLUMNS))) > MAX_CACHED_STATEMENT_LENGTH, "with values that are not given"


def test_the_values_of_a_checkpoint_are_stored_as_themselves(stored: list[Any]) -> None:
    session: Any = None
    taken = Checkpoint(job_id="job", state_size=1, checkpointed_size=2, end_to_end_duration=3)
    series.note_checkpoint(session, taken, 50)
    series.note_failed_checkpoint(session, "job", 60)
    series.take_back_failed_checkpoint(session, "job", 60)
    series.note_restart(session, "job", 70)
    assert stored == [
        (
            "job",
            50,
            {
                "state_size": 1,
                "checkpointed_size": 2,
                "checkpointed_bytes": 2,
                "checkpoint_duration_ms": 3,
                "checkpoint_duration_min_ms": 3,
                "checkpoint_duration_sum_ms": 3,
                "checkpoints_completed": 1,
            },
        ),
        ("job", 60, {"checkpoints_failed": 1}),
        ("job", 60, {"checkpoints_failed": -1}),
        ("job", 70, {"restarts": 1}),
    ]
    assert set(stored[0][2]) <= set(COLUMNS)


@pytest.mark.parametrize(("is_current", "rate"), [(True, 4.0), (False, None)])
def test_a_sample_has_the_jobs_counters_and_the_gauges_of_a_running_driver(
    stored: list[Any], is_current: bool, rate: float | None
) -> None:
    session: Any = None
    before = {"input_records": 10, "lag_records": 6, "lag_records_at_ms": 1}
    metrics = DriverMetrics(batches=1, input_records=5, processed_records_per_second=4.0)
    series.sample(session, "job", metrics, before, is_current=is_current, at_ms=77)
    [(job_id, at_ms, values)] = stored
    assert (job_id, at_ms, values["input_records"], values["processed_rate"]) == ("job", 77, 15, rate)
    assert values["lag_records"] is None, "an earlier driver's number is not of this time"
    assert set(values) <= set(COLUMNS), "the size of the state comes from checkpoints, and rates from counters"
    series.sample(session, "job", DriverMetrics(pending_records=9), before, is_current=is_current, at_ms=78)
    assert stored[1][2]["lag_records"] == 9
    old = DriverMetrics(pending_records=9, lag_age_ms=3000)
    series.sample(session, "job", old, before, is_current=is_current, at_ms=79)
    assert stored[2][2]["lag_records"] is None, "the sources do not answer"


def test_a_sample_has_the_values_of_functions_metrics_and_gauges_of_a_running_driver_only(stored: list[Any]) -> None:
    session: Any = None
    given = {"operator": "shop", "labels": {}}
    histogram = {**given, "name": "amount", "kind": "histogram", "values": [12.5, 1, 2], "bounds": [10.0]}
    metrics = DriverMetrics.model_validate(
        {
            "counters": {"user": [histogram]},
            "user_gauges": [{**given, "name": "age", "kind": "gauge", "values": [7]}],
        }
    )
    for is_current in (True, False):
        series.sample(session, "job", metrics, None, is_current=is_current, at_ms=77)
    amount, age = (
        key_of({**given, "name": name, "kind": kind}) for name, kind in (("amount", "histogram"), ("age", "gauge"))
    )
    assert stored[0][2]["user_metrics"] == {amount: [12.5, 3], age: [7]}
    assert stored[1][2]["user_metrics"] == {amount: [12.5, 3]}


def test_functions_counters_are_shown_as_rates_gauges_as_values_and_histograms_as_means(shown: Shown) -> None:
    keys = {
        kind: key_of({"operator": "shop", "name": kind, "kind": kind, "labels": {}})
        for kind in ("counter", "gauge", "histogram")
    }
    shown.rows = [
        point(
            NOW_MS - steps_ago * SAMPLE_MS,
            input_records=1,
            step_ms=SAMPLE_MS,
            user_metrics={keys["counter"]: [total], keys["gauge"]: [total], keys["histogram"]: [total, total / 4]},
        )
        for steps_ago, total in ((3, 100), (2, 150), (1, 150))
    ]
    found = shown.show(from_ms=NOW_MS - 2 * SAMPLE_MS, to_ms=NOW_MS - SAMPLE_MS).user
    assert {each.kind: each.values for each in found} == {
        "COUNTER": [5.0, 0.0],
        "GAUGE": [150, 150],
        "HISTOGRAM": [4.0, None],
    }
    assert shown.show([SeriesName.INPUT_RATE]).user == []


def test_of_several_points_the_latest_values_of_functions_metrics_count() -> None:
    values = ({"age": [1], "sum": [5, 2]}, {"age": [2], "sum": [9, 3]}, None)
    points = [point(at_ms, user_metrics=each) for at_ms, each in zip((0, 10_000, 20_000), values, strict=True)]
    [step] = merged(points, 40_000).values()
    assert (step["age"], step["sum"], step["sum count"]) == (2, 9, 3)


def test_a_job_counts_on_from_what_was_known_before_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = None
    monkeypatch.setattr(series, "known_before", lambda _, job_id, number: {"job": {"input_records": number}}[job_id])
    attempt = Attempt(job_id="job", number=4, totals_before={})
    series.begin_counting(session, attempt)
    assert attempt.totals_before == {"input_records": 4}
    attempt.metrics, attempt.number = {}, 5
    series.begin_counting(session, attempt)
    assert attempt.totals_before == {"input_records": 4}


class Shown:
    """The series of one job, as the service shows them, and what it reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[SeriesPoint] = []
        self.events: list[Event] = []
        self.failed: list[Checkpoint] = []
        self.read: list[Any] = []
        monkeypatch.setattr(series, "now_ms", lambda: NOW_MS)
        monkeypatch.setattr(series, "require_job_id", lambda _, name: {"flights": "job"}[name])
        monkeypatch.setattr(series.series, "read", self._read)
        monkeypatch.setattr(
            series.events, "between", lambda _, *key, **more: self._note("events", *key, more) or self.events
        )
        monkeypatch.setattr(
            series.checkpoints, "failed_between", lambda _, *key, **__: self._note("failed", *key) or self.failed
        )

    def _read(self, _: Any, job_id: str, retention: Any, from_ms: int, to_ms: int) -> list[SeriesPoint]:
        self._note("points", job_id, retention.step_ms, from_ms, to_ms)
        return self.rows

    def _note(self, *what: Any) -> None:
        self.read.append(what)

    def show(self, names: Any = (), **span: Any) -> Any:
        context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
        return series.show(context, "flights", series.Span(**span), names)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch)


def test_the_last_hour_is_shown_with_the_step_before_it_for_its_first_rate(shown: Shown) -> None:
    begin = NOW_MS - HOUR_MS
    shown.rows = [
        point(begin - 10_000, step_ms=10_000, input_records=5),
        point(begin, step_ms=10_000, input_records=25),
    ]
    answer = shown.show()
    assert (answer.from_ms, answer.to_ms, answer.step_ms) == (begin, NOW_MS, 10_000)
    assert (answer.at_ms[0], answer.at_ms[-1], len(answer.at_ms)) == (begin, NOW_MS, 361)
    assert shown.read[0] == ("points", "job", 10_000, begin - 10_000, NOW_MS)
    assert shown.read[1][:4] == ("events", "job", begin, NOW_MS)
    assert shown.read[2] == ("failed", "job", begin, NOW_MS)
    assert set(answer.series) == set(SeriesName)
    assert answer.series[SeriesName.INPUT_RATE][:2] == [2.0, None]
    assert answer.series[SeriesName.INPUT_RECORDS][:2] == [25, None]


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ({"to_ms": NOW_MS + DAY_MS}, (NOW_MS - HOUR_MS, NOW_MS)),
        ({"to_ms": NOW_MS - DAY_MS}, (NOW_MS - DAY_MS - HOUR_MS, NOW_MS - DAY_MS)),
        ({"to_ms": HOUR_MS // 2}, (0, HOUR_MS // 2)),
        ({"from_ms": NOW_MS}, (NOW_MS, NOW_MS)),
        ({"from_ms": 0}, (0, NOW_MS)),
    ],
)
def test_a_span_ends_now_at_the_latest(shown: Shown, span: dict[str, int], expected: tuple[int, int]) -> None:
    answer = shown.show(**span)
    assert (answer.from_ms, answer.to_ms) == expected


def test_the_last_rate_of_a_past_span_is_of_its_whole_step(shown: Shown) -> None:
    last, minute = NOW_MS - 4 * HOUR_MS, 60_000
    shown.rows = [
        point(last - minute, step_ms=minute, input_records=5),
        point(last, step_ms=minute, input_records=125),
    ]
    answer = shown.show(from_ms=last - HOUR_MS, to_ms=last + 5_000)
    assert (answer.step_ms, answer.at_ms[-1]) == (minute, last)
    assert answer.series[SeriesName.INPUT_RATE][-1] == 2.0


def test_a_span_begins_when_the_retention_does(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000 * DAY_MS
    monkeypatch.setattr(series, "now_ms", lambda: now)
    assert shown.show(from_ms=0).from_ms == now - RETENTIONS[-1].span_ms
    assert (shown.show(from_ms=0, to_ms=DAY_MS).from_ms, shown.show(from_ms=0, to_ms=DAY_MS).to_ms) == (DAY_MS, DAY_MS)


def test_a_span_that_ends_before_it_begins_is_refused(shown: Shown) -> None:
    for span in ({"from_ms": 2, "to_ms": 1}, {"from_ms": NOW_MS + 1}):
        with pytest.raises(RequestInvalidError):
            shown.show(**span)


def test_a_step_begins_at_a_multiple_of_its_length_and_the_chosen_series_are_in_their_order(shown: Shown) -> None:
    begin, end = NOW_MS - 25_000, NOW_MS - 5_000
    answer = shown.show(
        [SeriesName.STATE_SIZE, SeriesName.INPUT_RECORDS, SeriesName.STATE_SIZE], from_ms=begin, to_ms=end
    )
    assert (answer.from_ms, answer.to_ms) == (begin, end)
    assert answer.at_ms == [NOW_MS - 30_000, NOW_MS - 20_000, NOW_MS - 10_000]
    assert shown.read[0] == ("points", "job", 10_000, NOW_MS - 40_000, end)
    assert [what[:4] for what in shown.read[1:]] == [("events", "job", begin, end), ("failed", "job", begin, end)]
    assert list(answer.series) == sorted({SeriesName.INPUT_RECORDS, SeriesName.STATE_SIZE}, key=list(SeriesName).index)


def test_marks_are_in_the_order_of_time_and_name_what_they_are_of(shown: Shown) -> None:
    def event(at_ms: int, kind: str, **details: Any) -> Event:
        return Event(at_ms=at_ms, kind=kind, message=kind.lower(), details=details)

    shown.events = [
        event(30, "RESCALE_CANCELLED", operation_id="c"),
        event(10, "UPGRADE_ROLLED_BACK", operation_id="d"),
        event(50, "JOB_FAILED"),
    ]
    shown.failed = [
        Checkpoint(checkpoint_id=7, is_savepoint=True, trigger_timestamp=40),
        Checkpoint(checkpoint_id=8, is_savepoint=False, trigger_timestamp=20),
    ]
    assert [(one.at_ms, one.kind, one.text, one.id) for one in shown.show().annotations] == [
        (10, "ROLLBACK", "upgrade_rolled_back", "d"),
        (20, "CHECKPOINT_FAILED", "checkpoint 8 failed", "8"),
        (30, "RESCALE", "rescale_cancelled", "c"),
        (40, "CHECKPOINT_FAILED", "savepoint 7 failed", "7"),
        (50, "FAILURE", "job_failed", None),
    ]
    most = series.ANNOTATIONS_MAX
    shown.failed = [Checkpoint(checkpoint_id=each, is_savepoint=False, trigger_timestamp=each) for each in range(most)]
    annotations = shown.show().annotations
    assert (len(annotations), annotations[0].id, annotations[-1].id) == (
        series.ANNOTATIONS_MAX,
        "3",
        str(series.ANNOTATIONS_MAX - 1),
    )


@pytest.mark.parametrize(("seconds", "expected"), [((0, 10), 2.0), ((0, 0), None), ((10, 0), None)])
def test_a_rate_needs_two_samples_of_different_times(seconds: tuple[int, int], expected: float | None) -> None:
    steps = {0: {"input_records": 5}, 10_000: {"input_records": 25}}
    counted = {0: seconds[0] * 1000, 10_000: seconds[1] * 1000}
    rates = series._values(steps, [0, 10_000], 10_000, counted, SeriesName.INPUT_RATE)
    assert rates == [None, expected]
    fewer = {0: {"input_records": 25}, 10_000: {"input_records": 5}}
    assert series._values(fewer, [10_000], 10_000, {0: 0, 10_000: 9}, SeriesName.INPUT_RATE) == [0.0]


def test_the_newest_events_and_failed_checkpoints_of_a_span_are_read(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(series.events, "between", lambda _, *of, **more: asked.append((*of, more)) or [])
    monkeypatch.setattr(series.checkpoints, "failed_between", lambda _, *of, **more: asked.append((*of, more)) or [])
    shown.show(from_ms=NOW_MS - 7, to_ms=NOW_MS - 3)
    limit = {"limit": series.ANNOTATIONS_MAX}
    assert asked == [
        ("job", NOW_MS - 7, NOW_MS - 3, {"kinds": sorted(series._ANNOTATIONS), **limit}),
        ("job", NOW_MS - 7, NOW_MS - 3, limit),
    ]


def test_series_of_functions_metrics_are_of_their_operator_and_have_their_labels(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"currency": "EUR"}
    keys = [
        key_of({"operator": operator, "name": "age", "kind": "gauge", "labels": labels}) for operator in ("b", "a", "c")
    ]
    shown.rows = [point(NOW_MS, step_ms=SAMPLE_MS, user_metrics={key: [at] for at, key in enumerate(keys)})]
    monkeypatch.setattr(series, "USER_SERIES_MAX", 2)
    found = shown.show(from_ms=NOW_MS).user
    assert [each.model_dump() for each in found] == [
        {"operator": operator, "name": "age", "kind": "GAUGE", "labels": labels, "values": [value]}
        for operator, value in (("a", 1.0), ("b", 0.0))
    ]


def test_the_routes_of_metrics_ask_for_what_the_query_names(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    services = {"series": "show", "days": "list_of", "user_metrics": "list_of"}
    for service, name in services.items():
        function = getattr(series_routes, service)
        monkeypatch.setattr(function, name, lambda *given, service=service: noted.append((service, *given)))
    context, user = cast("Any", "context"), cast("Any", "user")
    span = run_coroutine(series_routes._span(5, 9, 7))
    assert (span, run_coroutine(series_routes._span())) == (series.Span(5, 9, 7), series.Span(None, None, 360))
    series_routes.show_series(context, user, "flights", span, [SeriesName.STATE_SIZE])
    series_routes.show_series(context, user, "flights", span)
    series_routes.list_days(context, user, "flights", 8)
    series_routes.list_user_metrics(context, user, "flights")
    assert noted == [
        ("series", "context", "flights", span, [SeriesName.STATE_SIZE]),
        ("series", "context", "flights", span, ()),
        ("days", "context", "flights", 8),
        ("user_metrics", "context", "flights"),
    ]
