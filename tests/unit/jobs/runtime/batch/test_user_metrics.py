"""What the driver keeps of the metrics of users' functions."""

from __future__ import annotations

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.jobs.runtime.batch.user_metrics import NAMES_MAX, UserMetrics
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.metrics import COUNTER, GAUGE, LARGEST
from keyscale.state.documents.job_counters import JobCounters
from keyscale.user_series import OTHER, USER_SERIES_MAX, UserSeries


def report(*series: UserSeries, subtask: int = 0, described: dict[str, str] | None = None) -> TaskReport:
    return TaskReport("run", OperatorUid("shop"), SubtaskIndex(subtask), user_series=series, user_help=described or {})


def age(value: float, **labels: str) -> UserSeries:
    return UserSeries("shop", "age", GAUGE, labels, (value,), (), LARGEST)


def test_a_gauge_keeps_the_last_value_of_each_subtask() -> None:
    metrics = UserMetrics()
    for reports in ([report(age(9)), report(age(3), subtask=1)], [report(age(2))], [report()]):
        assert not list(metrics.saw(reports, JobCounters()))
    assert metrics.gauges == (age(3),)


def test_gauges_with_ever_new_labels_take_bounded_memory() -> None:
    metrics = UserMetrics()
    for batch in range(3):
        gauges = (age(batch, customer=f"{batch}-{number}") for number in range(USER_SERIES_MAX))
        list(metrics.saw([report(*gauges)], JobCounters()))
    (kept,) = metrics._gauges.values()
    assert len(kept) == USER_SERIES_MAX + 1
    assert age(2, customer=OTHER) in metrics.gauges


def test_metrics_with_ever_new_names_leave_a_report_that_is_accepted() -> None:
    metrics = UserMetrics()
    for first in range(0, 2 * NAMES_MAX, 100):
        described = {f"orders_{number}": "Orders." for number in range(first, first + 100)}
        list(metrics.saw([report(described=described)], JobCounters()))
    DriverMetrics.model_validate({"user_help": metrics.help})
    list(metrics.saw([report(described={"orders_0": "All orders."})], JobCounters()))
    assert (metrics.help["orders_0"], len(metrics.help)) == ("All orders.", NAMES_MAX)


def test_a_metric_with_too_many_series_is_named_once() -> None:
    metrics, new = UserMetrics(), UserSeries("shop", "orders", COUNTER, {"customer": "new"}, (1,))
    assert [len(list(metrics.saw([report(new)], JobCounters()))) for _ in range(2)] == [1, 0]
