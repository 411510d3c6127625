"""A function as a sink gets each batch before its commit, once per try, and nothing afterwards."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keyscale import ForeachBatchSink
from keyscale.jobs.errors import InvalidTopologyError, SinkForbiddenError, SinkFunctionError, SinkUnavailableError
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.sinks.sink import CheckedSink, SinkContext
from tests.support.sinks.driver import UID, SinkDriver

FRAME = "rows"


def driver_of(function: Any) -> SinkDriver:
    return SinkDriver(lambda: ForeachBatchSink(function), lambda *_: FRAME)


def test_each_batch_is_given_once_with_its_number_and_attempt() -> None:
    given: list[tuple[str, int, int]] = []
    driver = driver_of(lambda frame, context: given.append((frame, context.batch_id, context.attempt)))
    driver.run(1)
    driver.run(2)
    assert given == [(FRAME, 0, 1), (FRAME, 1, 1), (FRAME, 2, 2)]


def test_a_batch_that_failed_before_its_commit_is_given_again_to_the_next_attempt() -> None:
    given: list[tuple[int, int]] = []

    def function(_: Any, context: Any) -> None:
        given.append((context.batch_id, context.attempt))
        if given == [(0, 1), (1, 1)]:
            raise LookupError

    driver = driver_of(function)
    with pytest.raises(SinkFunctionError):
        driver.run(1)
    driver.run(1)
    assert given == [(0, 1), (1, 1), (1, 2)]


def test_a_job_that_goes_back_gives_the_later_batches_again_under_its_own_attempt() -> None:
    given: list[tuple[int, int]] = []
    driver = driver_of(lambda _, context: given.append((context.batch_id, context.attempt)))
    driver.run(1)
    driver.go_back(0)
    driver.run(1)
    assert given == [(0, 1), (1, 1), (1, 2)]


def test_an_exception_of_the_function_is_the_users_and_one_of_ours_stays_what_it_is() -> None:
    def broken(*_: Any) -> None:
        raise LookupError("no table")

    with pytest.raises(SinkFunctionError, match="LookupError: no table") as failed:
        driver_of(broken).run(0)
    assert origin_of(failed.value).operator_uid == UID

    def away(*_: Any) -> None:
        raise SinkUnavailableError("away")

    with pytest.raises(SinkUnavailableError, match="away"):
        driver_of(away).run(0)


SCHEMA = pa.schema([("id", pa.int64())])
CONTEXT = SinkContext("job", UID, 0, 1, "u")


def ignore(_frame: Any, _context: Any) -> None:
    pass


def test_a_check_of_the_users_gets_the_schema_before_an_attempt_and_a_sink_without_one_tries_nothing() -> None:
    given: list[Any] = []
    sink = ForeachBatchSink(ignore, check=lambda schema, context: given.append((schema, context)))
    assert isinstance(sink, CheckedSink)
    sink.check(SCHEMA, CONTEXT)
    assert given == [(SCHEMA, CONTEXT)]
    ForeachBatchSink(ignore).check(SCHEMA, CONTEXT)


def test_a_check_that_fails_is_the_users_and_a_missing_right_stays_what_it_is() -> None:
    def broken(*_: Any) -> None:
        raise LookupError("no table")

    def forbidden(*_: Any) -> None:
        raise SinkForbiddenError("user a may not write")

    with pytest.raises(SinkFunctionError, match="the check of sink out failed: LookupError: no table"):
        ForeachBatchSink(ignore, broken).check(SCHEMA, CONTEXT)
    with pytest.raises(SinkForbiddenError, match="may not write"):
        ForeachBatchSink(ignore, forbidden).check(SCHEMA, CONTEXT)


@pytest.mark.parametrize("function", [lambda _frame: None, lambda _a, _b, _c: None, "write", None])
def test_a_function_that_does_not_take_a_frame_and_a_context_is_refused_where_it_is_declared(function: Any) -> None:
    with pytest.raises(InvalidTopologyError, match="the frame and the context of a batch"):
        ForeachBatchSink(function)
    if function is not None:
        with pytest.raises(InvalidTopologyError, match="a schema and a context"):
            ForeachBatchSink(ignore, function)


@pytest.mark.parametrize("function", [ignore, lambda *_: None, lambda _a, _b, _more=1: None, print])
def test_any_function_of_two_arguments_is_taken(function: Any) -> None:
    ForeachBatchSink(function, function)
