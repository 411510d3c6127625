"""The model tells the parts of a batch that more subtasks shorten from the other parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.autoscaling.facts import BatchFacts, DivisionFacts, Limits, OperatorFacts, ScalingFacts
from keyscale.api.autoscaling.model import BATCH_MS, CostModel
from keyscale.state.restore.range_choice import chosen_ranges, weights_of


def model(*batches: BatchFacts, operators: tuple[OperatorFacts, ...] = (), **changed: Any) -> CostModel:
    return CostModel(ScalingFacts(0, 2, 8, Limits(1, 8), batches=batches, operators=operators, **changed))


def batch(records: int) -> BatchFacts:
    """A batch with 300 ms and 10 us/record of Spark, 40 us of work, 5 ms and 20 us of the sink."""
    return BatchFacts(records, spark_ms=200 + records / 100, log_ms=100, work_ms=records / 25, sink_ms=5 + records / 50)


def test_batches_of_different_sizes_tell_the_fixed_cost_from_the_cost_per_record() -> None:
    terms = model(batch(1000), batch(2000), batch(4000)).terms(10_000, 2)
    assert terms == pytest.approx((305, 100, 400, 0, 200))


def test_only_the_work_of_subtasks_becomes_shorter_with_more_of_them() -> None:
    terms = model(batch(1000), batch(4000)).terms(10_000, 4)
    assert terms == pytest.approx((305, 100, 200, 0, 200))


def test_of_batches_that_are_alike_spark_is_a_fixed_cost_up_to_two_seconds_and_the_rest_per_record() -> None:
    assert model(batch(4000), batch(4100)).terms(8000, 2) == pytest.approx((340.5, 0, 320, 0, 169.9), abs=0.1)
    slow = BatchFacts(1000, spark_ms=BATCH_MS + 500)
    assert model(slow, slow).terms(2000, 2)[:2] == (BATCH_MS, 1000)


def test_the_capacity_is_of_batches_of_two_seconds() -> None:
    fitted = model(batch(1000), batch(4000))
    assert fitted.capacity(2) == pytest.approx((2000 - 305) / (0.01 + 0.04 + 0.02) / 2)


def test_sources_that_limit_a_batch_limit_the_capacity() -> None:
    limited = model(batch(1000), batch(1000), backlog=3000)
    assert limited.records(2) == 1000
    assert model(batch(1000), batch(1000), backlog=2999).records(2) > 1000
    assert model(batch(1000), batch(1200), backlog=9000).records(2) > 1000, "batches of different sizes have no limit"
    assert model(batch(900), batch(300), batch_limit=1000).records(2) == 1000, "the limit was seen earlier"
    assert model(batch(1200), batch(300), batch_limit=1000).records(2) > 1200, "and is another one now"


def test_key_groups_say_the_slowest_subtasks_share_at_any_parallelism() -> None:
    even = OperatorFacts("even", 10.0, (400, 400))
    assert [model(batch(800), operators=(even,)).share(count) for count in (1, 2, 3, 8)] == [1, 0.5, 3 / 8, 1 / 8]
    hot = OperatorFacts("hot", 10.0, (700, 100), {1: 600})
    fitted = model(batch(800), operators=(hot,))
    assert fitted.share(2) == pytest.approx(700 / 800)
    assert fitted.share(8) == pytest.approx(600 / 800), "a key group is never split"
    assert fitted.hot_key_group is not None
    assert (fitted.hot_key_group.key_group, fitted.hot_key_group.share) == (1, 0.75)


def test_each_operator_weighs_as_much_as_it_works() -> None:
    even, hot = OperatorFacts("even", 30.0, (400, 400)), OperatorFacts("hot", 10.0, (800, 0), {0: 800})
    fitted = model(batch(800), operators=(even, hot))
    assert fitted.work_ms(4) / fitted.work_ms(2) == pytest.approx((30 / 4 + 10) / (30 / 2 + 10))


def test_the_spread_of_a_few_records_is_chance() -> None:
    fitted = model(batch(50), operators=(OperatorFacts("few", 10.0, (50, 0), {0: 50}),))
    assert (fitted.work_ms(4) / fitted.work_ms(2), fitted.hot_key_group) == (0.5, None)


def test_the_spreads_of_the_eight_operators_with_most_work_count() -> None:
    evens = tuple(OperatorFacts(f"even-{index}", 10.0, (400, 400)) for index in range(8))
    hot = OperatorFacts("hot", 9.0, (800, 0), {0: 800})
    assert model(batch(800), operators=(hot, *evens)).share(2) == 0.5
    assert model(batch(800), operators=(hot, *evens[1:])).share(2) == 1


def test_ranges_by_size_say_the_share_as_a_rescale_would_choose_them() -> None:
    weights = [70, 10, 10, 10, 10, 10, 10, 10]
    manifest: Any = SimpleNamespace(operators=[SimpleNamespace(key_group_entries=weights, key_group_bytes=weights)])
    present = chosen_ranges(8, 2, sized=manifest)
    assert present.starts == (0, 1)
    read = OperatorFacts("skewed", 10.0, (700, 700))
    fitted = model(batch(1400), operators=(read,), division=DivisionFacts(present, weights_of(weights, weights)))
    assert fitted.share(2) == 0.5, "by count, one subtask would have 71 % of the records"
    for count in (1, 3, 4, 8):
        records = [700.0, *[100.0] * 7]
        chosen = chosen_ranges(8, count, sized=manifest)
        assert fitted.share(count) == max(sum(records[each.start : each.end + 1]) for each in chosen) / 1400
