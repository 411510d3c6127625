"""A job's counters: every one of them is added up and kept at its larger value."""

from __future__ import annotations

import msgspec
import pytest

from keyscale.metrics import LOG_COUNTERS, MetricKind
from keyscale.state.documents.job_counters import NOTHING_COUNTED, JobCounters
from keyscale.user_series import UserSeries

NAMES = [metric.name for metric in LOG_COUNTERS]


def series(count: int) -> UserSeries:
    return UserSeries("count", "orders", MetricKind.COUNTER, {"currency": "EUR"}, (count,))


@pytest.mark.parametrize("name", NAMES)
def test_each_counter_is_added_and_compared_by_itself(name: str) -> None:
    everything = JobCounters(**{each: 10 * number for number, each in enumerate(NAMES, 1)})
    more = JobCounters(**{name: 5})
    assert everything.plus(more) == msgspec.structs.replace(everything, **{name: getattr(everything, name) + 5})
    assert NOTHING_COUNTED.at_least(more) == more.at_least(NOTHING_COUNTED) == more
    larger = msgspec.structs.replace(everything, **{name: 10_000})
    assert everything.at_least(larger) == larger.at_least(everything) == larger
    assert msgspec.json.decode(msgspec.json.encode(larger), type=JobCounters) == larger


def test_counters_of_users_functions_are_added_and_stay_unset_without_any() -> None:
    some = JobCounters(user=(series(3),))
    assert NOTHING_COUNTED.plus(some).user == (series(3),)
    assert some.plus(some).user == (series(6),)
    assert some.plus(NOTHING_COUNTED).user == (series(3),)
    assert some.at_least(JobCounters(user=(series(2),))).user == (series(3),)
    assert NOTHING_COUNTED.plus(NOTHING_COUNTED) == NOTHING_COUNTED
    assert NOTHING_COUNTED.at_least(NOTHING_COUNTED).user is msgspec.UNSET
    assert (NOTHING_COUNTED.user_series, some.user_series) == ((), (series(3),))
    assert b"user" not in msgspec.json.encode(NOTHING_COUNTED)
