"""Tests of the series of users' metrics."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from keyscale.metrics import COUNTER, GAUGE, HISTOGRAM, LARGEST, SMALLEST, SUM, Fold
from keyscale.user_series import (
    OTHER,
    USER_SERIES_MAX,
    UserSeries,
    added,
    at_least,
    gauges_of,
    overflowing,
)


def counter(value: int, name: str = "orders", operator: str = "shop", **labels: str) -> UserSeries:
    return UserSeries(operator, name, COUNTER, labels, (value,))


def gauge(value: float, fold: Fold, **labels: str) -> UserSeries:
    return UserSeries("shop", "age", GAUGE, labels, (value,), (), fold)


def test_batches_add_up_by_operator_name_and_labels() -> None:
    before = (counter(1, currency="EUR"), counter(2, currency="USD"))
    batch = (counter(10, currency="EUR"), counter(3, operator="till", currency="EUR"), counter(4, currency="EUR"))
    assert added(before, batch) == (
        counter(15, currency="EUR"),
        counter(2, currency="USD"),
        counter(3, operator="till", currency="EUR"),
    )


def test_histograms_add_up_by_bucket() -> None:
    first = UserSeries("shop", "amount", HISTOGRAM, {}, (3.5, 1, 0, 2), (1.0, 2.0))
    assert added((first,), (first, first))[0].values == (10.5, 3, 0, 6)


def test_a_metric_with_another_declaration_begins_again() -> None:
    old = UserSeries("shop", "amount", HISTOGRAM, {}, (3.5, 1, 0), (1.0,))
    new = UserSeries("shop", "amount", HISTOGRAM, {}, (9.5, 1, 0), (10.0,))
    assert added((old, counter(1)), (new,)) == (new, counter(1))
    assert added((counter(5, currency="EUR"),), (counter(1, country="FR"),)) == (counter(1, country="FR"),)


def test_the_newer_declaration_counts_though_the_older_one_has_counted_more() -> None:
    old = UserSeries("shop", "amount", HISTOGRAM, {}, (90.5, 9, 0), (1.0,))
    new = UserSeries("shop", "amount", HISTOGRAM, {}, (9.5, 1, 0), (10.0,))
    assert at_least((old, counter(2)), (new, counter(1))) == (new, counter(2))


def test_a_sum_stays_a_number_that_json_holds_exactly() -> None:
    assert added((counter(2**53),), (counter(1),)) == (counter(2**53),)


def test_two_declarations_in_one_batch_do_not_fail_the_batch() -> None:
    batch = [UserSeries("shop", "amount", HISTOGRAM, {}, (3.5, 1, 0), (bound,)) for bound in (1.0, 2.0)]
    assert added((), batch) == (batch[1],)


def test_series_that_are_too_many_count_as_other() -> None:
    full = added((), (counter(1, customer=str(number)) for number in range(USER_SERIES_MAX)))
    after = added(full, (counter(2, customer="0"), counter(3, customer="new"), counter(4, customer="newer")))
    assert len(after) == USER_SERIES_MAX + 1
    values = {series.labels["customer"]: series.values[0] for series in after}
    assert (values["0"], values[OTHER]) == (3, 7)
    assert overflowing(after, (counter(3, customer="new"),)) == {"orders"}
    assert overflowing(after, (counter(3, customer="0"),)) == set()


def test_the_number_of_series_is_bounded_whatever_metrics_there_are() -> None:
    after = added((), (counter(1, name=f"metric_{number}") for number in range(1000)))
    assert len(after) == 2 * USER_SERIES_MAX


@given(st.lists(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), max_size=60), max_size=12))
def test_values_are_never_lost_or_counted_twice(batches: list[list[tuple[int, int]]]) -> None:
    counted: tuple[UserSeries, ...] = ()
    for batch in batches:
        counted = added(counted, (counter(number, customer=str(customer)) for customer, number in batch))
    assert sum(each.values[0] for each in counted) == sum(number for batch in batches for _, number in batch)


def test_the_newer_of_two_values_is_the_larger() -> None:
    older, newer = (counter(1), counter(5, currency="EUR")), (counter(2), counter(4, currency="EUR"))
    assert at_least(older, newer) == (counter(2), counter(5, currency="EUR"))
    assert at_least((), older) == at_least(older, ()) == older


def test_a_gauge_of_subtasks_is_folded_as_declared() -> None:
    for fold, value in ((SUM, 9), (LARGEST, 5), (SMALLEST, 4)):
        assert gauges_of({0: [gauge(5, fold)], 1: [gauge(4, fold)]}) == (gauge(value, fold),)


def test_gauges_that_are_too_many_become_other() -> None:
    many = (gauge(1, SUM, host=str(number)) for number in range(USER_SERIES_MAX + 5))
    found = gauges_of({0: list(islice(many, 1000))})
    assert [each.values[0] for each in found if each.labels["host"] == OTHER] == [5]
