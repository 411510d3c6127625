"""The states of a program's operators follow from the columns of Spark's state, or from the user's expressions."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - as usual in PySpark
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale import (
    AggregateFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    SessionWindows,
    SlidingWindows,
    TimeDomain,
    Ttl,
    TumblingWindows,
    ValueStateDescriptor,
)
from keyscale.jobs.functions.windows import WINDOW_TYPE
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.streams.streams import DataStream
from keyscale.state_import.errors import ImportUnmappedError, ImportUnsupportedError
from keyscale.state_import.operator_match import matched_operators
from keyscale.state_import.spark_checkpoint import BatchFacts
from keyscale.state_import.spark_operator import (
    EXPIRES,
    TIMEOUT,
    OperatorKind,
    SparkOperator,
    SparkState,
    VariableKind,
    unique_names,
)
from keyscale.state_import.state_plan import Expressions, derived, plan_operator
from keyscale.state_import.target_program import TargetOperator, target_operators

SCHEMA = pa.schema([("user", pa.string()), ("page", pa.string()), ("at", pa.timestamp("us", "UTC"))])
OUTPUT = pa.schema([("total", pa.int64())])
USERS = pa.schema([("user", pa.string())])
BATCH = BatchFacts(7, 5_000, 9_000, 100_000)
NOTHING_GIVEN = Expressions()


class Total(AggregateFunction):
    def create_accumulator(self):
        return {"count": 0, "sum": 0.0}

    def add(self, value, accumulator):  # noqa: ARG002 - not called here
        return accumulator

    def get_result(self, accumulator):
        return (accumulator["count"],)

    def merge(self, left, right):  # noqa: ARG002 - not called here
        return left


class Counts(KeyedProcessFunction):
    """Declares two values and a map, and has timers."""

    def open(self, context):
        context.get_state(ValueStateDescriptor("count", pa.int64()))
        context.get_state(ValueStateDescriptor("sum", pa.float64()))
        context.get_map_state(MapStateDescriptor("pages", pa.string(), pa.int64()))

    def process_element(self, row, context):
        raise NotImplementedError

    def on_timer(self, timestamp, context):
        raise NotImplementedError


class Pages(StatefulProcessor):
    """Has a state of each kind, with a TTL, and timers."""

    def init(self, handle):
        handle.getValueState("last", "page string", 60_000)
        handle.getListState("pages", "page string")
        handle.getMapState("per page", "page string", "views bigint")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's names
        raise NotImplementedError

    def close(self):
        return


ACCUMULATOR = pa.struct([("count", pa.int64()), ("sum", pa.float64())])


def target_of(declare: Any) -> TargetOperator:
    """The only operator of the program that `declare` makes of a stream with event times."""
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), SCHEMA)
    views = DataStream(cast("Any", None), builder, source, None).with_timestamps("at", max_out_of_orderness_ms=1000)
    declare(views).uid("target").sink_to(cast("Any", None)).uid("sink")
    (target,) = target_operators(builder.build())
    return target


def fields(**columns: T.DataType) -> tuple[T.StructField, ...]:
    return tuple(T.StructField(name, kind) for name, kind in columns.items())


def operator(
    kind: OperatorKind,
    key: tuple[T.StructField, ...],
    value: tuple[T.StructField, ...] = (),
    *extra: str,
    name: str = "",
    of: VariableKind = VariableKind.VALUE,
    map_key: tuple[T.StructField, ...] = (),
    time_mode: str | None = None,
) -> SparkOperator:
    return SparkOperator(0, "", kind, (SparkState(name, of, key, value, map_key, extra),), time_mode)


USER = fields(user=T.StringType())
WINDOW = T.StructType([T.StructField("start", T.TimestampType()), T.StructField("end", T.TimestampType())])
WINDOW_AND_PAGE = fields(window=WINDOW, page=T.StringType())
COUNT_AND_SUM = fields(count=T.LongType(), sum=T.DoubleType())


def columns_of(spark_operator: SparkOperator, target: TargetOperator, given: Expressions = NOTHING_GIVEN) -> Any:
    return {state.name: dict(state.columns) for state in plan_operator(spark_operator, target, given, BATCH).states}


def test_a_deduplication_takes_the_keys_that_spark_has_seen() -> None:
    target = target_of(lambda views: views.key_by("user").deduplicate())
    (state,) = plan_operator(operator(OperatorKind.DEDUPLICATION, USER), target, NOTHING_GIVEN, BATCH).states
    assert (state.name, dict(state.key), dict(state.columns)) == ("seen", {"user": "key.`user`"}, {"value": "true"})


def test_a_key_expires_in_the_job_when_it_would_in_spark() -> None:
    ttl = Ttl(10_000, time_domain=TimeDomain.EVENT)
    target = target_of(lambda views: views.key_by("user").deduplicate(ttl=ttl))
    within = operator(OperatorKind.DEDUPLICATION_WITHIN_WATERMARK, USER, (), EXPIRES)
    assert (
        columns_of(within, target)["seen"]["ttl_started_at"]
        == "timestamp_millis(least(expires_ms - 10001, 140737488355327))"
    )
    plan = plan_operator(operator(OperatorKind.DEDUPLICATION, USER), target, NOTHING_GIVEN, BATCH)
    assert plan.states[0].columns["ttl_started_at"] == "timestamp_millis(9000)"
    assert plan.notes == ("the TTL of state 'seen' begins with the import: Spark has none",)


def test_a_deduplication_by_hash_is_refused_as_the_savepoint_would_need_the_hashes() -> None:
    target = target_of(lambda views: views.key_by("user").deduplicate(hashed=True))
    with pytest.raises(ImportUnsupportedError, match="declare an exact deduplicate"):
        columns_of(operator(OperatorKind.DEDUPLICATION, USER), target)


def windowed(assigner: Any, lateness_ms: int = 0) -> TargetOperator:
    return target_of(
        lambda views: (
            views.key_by("page")
            .window(assigner)
            .allowed_lateness(lateness_ms)
            .aggregate(Total(), accumulator=ACCUMULATOR, output=OUTPUT)
        )
    )


def test_windows_take_the_columns_of_sparks_buffer_by_name_and_a_timer_at_their_end() -> None:
    spark_operator = operator(OperatorKind.AGGREGATION, WINDOW_AND_PAGE, COUNT_AND_SUM)
    found = columns_of(spark_operator, windowed(TumblingWindows(4000)))
    contents = found["window_contents"]
    assert contents["value"] == "named_struct('count', value.`count`, 'sum', value.`sum`)"
    assert contents["namespace"].startswith("named_struct('start', unix_millis(key.`window`.start), 'end', if(")
    timers = found["_event_timers"]
    assert timers == {"namespace": contents["namespace"], "time_ms": "unix_millis(key.`window`.end) - 1"}


def test_windows_with_lateness_get_a_second_timer_that_removes_them() -> None:
    spark_operator = operator(OperatorKind.AGGREGATION, WINDOW_AND_PAGE, COUNT_AND_SUM)
    found = columns_of(spark_operator, windowed(SlidingWindows(4000, 2000), lateness_ms=500))
    end = "unix_millis(key.`window`.end) - 1"
    assert found["_event_timers"]["time_ms"] == f"explode(array({end}, {end} + 500))"


@pytest.mark.parametrize(
    ("early_ms", "notes"), [(None, ()), (500, ("the early results of a window begin with its next record",))]
)
def test_the_contents_and_the_timers_of_windows_have_the_same_key(early_ms: int | None, notes: tuple[str, ...]) -> None:
    def declare(views: Any) -> Any:
        windows = views.key_by("page").window(TumblingWindows(4000))
        windows = windows if early_ms is None else windows.early_firing(early_ms)
        return windows.aggregate(Total(), accumulator=ACCUMULATOR, output=OUTPUT)

    spark_operator = operator(OperatorKind.AGGREGATION, WINDOW_AND_PAGE, COUNT_AND_SUM)
    plan = plan_operator(spark_operator, target_of(declare), NOTHING_GIVEN, BATCH)
    contents, timers = plan.states
    assert (plan.uid, plan.operator, plan.notes) == ("target", spark_operator, notes)
    assert [(each.source, dict(each.key)) for each in plan.states] == [
        (spark_operator.states[0], {"page": "key.`page`"})
    ] * 2
    assert contents.schema is not None
    assert (contents.name, contents.schema.name, contents.namespace_type) == (
        "window_contents",
        "window_contents",
        None,
    )
    assert (timers.name, timers.schema, timers.namespace_type) == ("_event_timers", None, WINDOW_TYPE)


@pytest.mark.parametrize(
    ("of_type", "names", "expression"),
    [
        (pa.int64(), ["n"], "value.`n`"),
        (pa.int64(), ["n", "m"], None),
        (pa.int64(), [], None),
        (pa.struct([("it's", pa.int64()), ("b`c", pa.int64())]), ["b`c", "more", "it's"], "{it's}, {b`c}"),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), ["a", "c"], None),
    ],
)
def test_a_value_is_the_only_field_or_a_struct_of_fields_by_name(
    of_type: pa.DataType, names: list[str], expression: str | None
) -> None:
    fields_of = {"{it's}": "'it\\'s', value.`it's`", "{b`c}": "'b`c', value.`b``c`"}
    for place, text in fields_of.items():
        expression = expression and expression.replace(place, text)
    is_struct = pa.types.is_struct(of_type) and expression is not None
    assert derived(of_type, "value", names) == (f"named_struct({expression})" if is_struct else expression)


def test_a_ttl_that_only_one_side_has_is_noted_and_begins_at_the_time_of_the_batch() -> None:
    ttl = Ttl(10_000, time_domain=TimeDomain.EVENT)
    with_ttl = target_of(lambda views: views.key_by("user").deduplicate(ttl=ttl))
    seen = operator(OperatorKind.DEDUPLICATION, USER)
    plan = plan_operator(seen, with_ttl, NOTHING_GIVEN, BatchFacts(7, 0, 0, 100_000))
    assert plan.states[0].columns["ttl_started_at"] == "timestamp_millis(100000)", "no watermark yet"
    without = target_of(lambda views: views.key_by("user").deduplicate())
    within = operator(OperatorKind.DEDUPLICATION_WITHIN_WATERMARK, USER, (), EXPIRES)
    plan = plan_operator(within, without, NOTHING_GIVEN, BATCH)
    assert dict(plan.states[0].columns) == {"value": "true"}
    assert plan.notes == ("state 'seen' keeps all rows: it has no TTL in the program",)


@pytest.mark.parametrize("assigner", [SessionWindows(1000), TumblingWindows(1000, time_domain=TimeDomain.PROCESSING)])
def test_windows_of_another_kind_than_sparks_are_refused(assigner: Any) -> None:
    spark_operator = operator(OperatorKind.AGGREGATION, WINDOW_AND_PAGE, COUNT_AND_SUM)
    with pytest.raises(ImportUnsupportedError, match="tumbling or sliding windows by event time"):
        columns_of(spark_operator, windowed(assigner))


def test_an_accumulator_that_does_not_follow_from_names_is_asked_for_and_taken_from_an_expression() -> None:
    declare = lambda views: views.key_by("user").aggregate(  # noqa: E731 - a name for a long argument
        Total(), accumulator=pa.struct([("n", pa.int64())]), output=OUTPUT
    )
    target = target_of(declare)
    spark_operator = operator(OperatorKind.AGGREGATION, USER, COUNT_AND_SUM)
    with pytest.raises(ImportUnmappedError, match=r"count \(bigint\), sum \(double\); give --value target accumulator"):
        columns_of(spark_operator, target)
    given = Expressions(values={("target", "accumulator"): "named_struct('n', value.count)"})
    assert columns_of(spark_operator, target, given) == {"accumulator": {"value": "named_struct('n', value.count)"}}


def test_the_values_of_a_function_are_taken_by_name_and_the_rest_starts_empty() -> None:
    target = target_of(lambda views: views.key_by("user").process(Counts(), output=SCHEMA))
    given = Expressions(values={("target", "_processing_timers"): TIMEOUT})
    group_state = operator(OperatorKind.GROUP_STATE, USER, COUNT_AND_SUM, TIMEOUT)
    plan = plan_operator(group_state, target, given, BATCH)
    assert {state.name: dict(state.columns) for state in plan.states} == {
        "count": {"value": "value.`count`"},
        "sum": {"value": "value.`sum`"},
        "_processing_timers": {"time_ms": TIMEOUT},
    }
    assert plan.notes[0] == "state 'pages' starts empty: no column of Spark's state has its name"
    assert "--value target _event_timers timeout_ms" in plan.notes[1]


def test_a_state_without_any_column_is_refused_with_the_columns_that_there_are() -> None:
    target = target_of(lambda views: views.key_by("user").process(Counts(), output=SCHEMA))
    with pytest.raises(ImportUnmappedError, match=r"its states are count, pages, sum, and .* n \(bigint\)"):
        columns_of(operator(OperatorKind.GROUP_STATE, USER, fields(n=T.LongType())), target)


def processor(time_mode: str) -> TargetOperator:
    return target_of(lambda views: views.key_by("user").transform_with_state(Pages(), USERS, time_mode=time_mode))


def test_the_states_of_a_processor_are_taken_by_their_names_and_kinds() -> None:
    page, count = fields(page=T.StringType()), fields(views=T.LongType())
    target = processor("ProcessingTime")
    value = operator(OperatorKind.PROCESSOR, USER, page, EXPIRES, name="last")
    assert columns_of(value, target)["last"] == {
        "value": "named_struct('page', value.`page`)",
        "ttl_started_at": "timestamp_millis(least(expires_ms - 60000, 140737488355327))",
    }
    of_list = operator(OperatorKind.PROCESSOR, USER, page, name="pages", of=VariableKind.LIST)
    assert columns_of(of_list, target)["pages"]["list_index"] == "list_index"
    of_map = operator(OperatorKind.PROCESSOR, USER, count, name="per page", of=VariableKind.MAP, map_key=page)
    assert columns_of(of_map, target)["per%20page"] == {
        "value": "named_struct('views', value.`views`)",
        "map_key": "named_struct('page', map_key.`page`)",
    }
    wrong = operator(OperatorKind.PROCESSOR, USER, page, name="last", of=VariableKind.LIST)
    with pytest.raises(ImportUnmappedError, match="is a ListState in Spark and a value in 'target'"):
        columns_of(wrong, target)


@pytest.mark.parametrize(
    ("time_mode", "timers", "time_ms"),
    [("EventTime", "_event_timers", "time_ms - 1"), ("ProcessingTime", "_processing_timers", "time_ms")],
)
def test_timers_of_a_processor_are_stored_by_keyscales_watermark_and_listed_by_sparks(
    time_mode: str, timers: str, time_ms: str
) -> None:
    of_spark = operator(OperatorKind.PROCESSOR, USER, of=VariableKind.TIMERS, time_mode=time_mode)
    target = target_of(lambda views: views.key_by("user").transform_with_state(Silent(), USERS, time_mode=time_mode))
    assert columns_of(of_spark, target) == {
        timers: {"time_ms": time_ms},
        f"_registered{timers}": {"map_key": "time_ms", "value": "true"},
    }
    other = "ProcessingTime" if time_mode == "EventTime" else "EventTime"
    elsewhere = target_of(lambda views: views.key_by("user").transform_with_state(Silent(), USERS, time_mode=other))
    with pytest.raises(ImportUnmappedError, match=f"has the time mode {time_mode}"):
        columns_of(of_spark, elsewhere)


class Silent(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's names
        raise NotImplementedError

    def close(self):
        return


def test_a_column_of_the_key_has_its_name_in_spark_or_an_expression() -> None:
    target = target_of(lambda views: views.key_by("user", "page").deduplicate())
    seen = operator(OperatorKind.DEDUPLICATION, fields(user=T.StringType(), site=T.StringType()))
    with pytest.raises(ImportUnmappedError, match="which has user, site; give --key target page EXPRESSION"):
        columns_of(seen, target)
    given = Expressions(keys={("target", "page"): "upper(key.site)"})
    (state,) = plan_operator(seen, target, given, BATCH).states
    assert dict(state.key) == {"user": "key.`user`", "page": "upper(key.site)"}


def test_an_expression_for_an_unknown_name_is_refused() -> None:
    target = target_of(lambda views: views.key_by("user").deduplicate())
    with pytest.raises(ImportUnmappedError, match="no column of the key 'id'; it has user"):
        columns_of(operator(OperatorKind.DEDUPLICATION, USER), target, Expressions(keys={("target", "id"): "key.a"}))
    with pytest.raises(ImportUnmappedError, match="no state 'sen'; it has seen"):
        columns_of(operator(OperatorKind.DEDUPLICATION, USER), target, Expressions(values={("target", "sen"): "true"}))


def test_names_that_are_used_twice_get_numbers() -> None:
    assert unique_names(["count", "sum", "count", "sum", "sum"]) == ["count", "sum", "count_2", "sum_2", "sum_3"]


def program() -> tuple[TargetOperator, ...]:
    builder = TopologyBuilder()
    views = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    for uid, keys in (("by-user", ["user"]), ("by-page", ["page"])):
        unique = views.key_by(*keys).deduplicate().uid(uid)
        unique.sink_to(cast("Any", None)).uid(f"{uid}-sink")
    counted = views.key_by("user").aggregate(Total(), accumulator=ACCUMULATOR, output=OUTPUT)
    counted.uid("totals").sink_to(cast("Any", None)).uid("totals-sink")
    return target_operators(builder.build())


def numbered(number: int, kind: OperatorKind | None, *key: str, name: str = "") -> SparkOperator:
    state = SparkState("", VariableKind.VALUE, fields(**{each: T.StringType() for each in key}))
    return SparkOperator(number, name, kind, (state,))


def uids(found: dict[int, TargetOperator]) -> dict[int, str]:
    return {number: target.uid for number, target in found.items()}


def test_operators_are_matched_by_kind_and_key() -> None:
    query = [
        numbered(0, OperatorKind.AGGREGATION, "user"),
        numbered(1, OperatorKind.DEDUPLICATION, "page", "x"),
        numbered(2, OperatorKind.DEDUPLICATION, "user", "x"),
    ]
    assert uids(matched_operators(query, program(), {}, NOTHING_GIVEN)) == {0: "totals", 1: "by-page", 2: "by-user"}


def test_a_named_operator_is_taken_and_one_that_is_left_out_has_no_counterpart() -> None:
    query = [numbered(0, OperatorKind.DEDUPLICATION, "a"), numbered(1, None, name="symmetricHashJoin")]
    assert uids(matched_operators(query, program(), {0: "by-page", 1: None}, NOTHING_GIVEN)) == {0: "by-page"}


def test_what_cannot_be_matched_is_refused_with_what_there_is() -> None:
    given = NOTHING_GIVEN
    unclear = [numbered(0, OperatorKind.DEDUPLICATION, "user", "page")]
    with pytest.raises(ImportUnmappedError, match=r"0 \(dropDuplicates\), .* 'by-user', 'by-page', 'totals'"):
        matched_operators(unclear, program(), {}, given)
    with pytest.raises(ImportUnmappedError, match="the program has no operator 'by-id'"):
        matched_operators(unclear, program(), {0: "by-id"}, given)
    with pytest.raises(ImportUnmappedError, match="the query has no operator 3"):
        matched_operators(unclear, program(), {3: "by-user"}, given)
    twice = [*unclear, numbered(1, OperatorKind.DEDUPLICATION, "user")]
    with pytest.raises(ImportUnmappedError, match="would go to operator 'by-user'"):
        matched_operators(twice, program(), {0: "by-user", 1: "by-user"}, given)
    join = [numbered(0, None, name="symmetricHashJoin")]
    with pytest.raises(ImportUnsupportedError, match="a join of two streams"):
        matched_operators(join, program(), {}, given)
    with pytest.raises(ImportUnsupportedError, match="a join of two streams"):
        matched_operators(join, program(), {0: "by-user"}, given)
