"""Arguments of the wrong type: each is refused with its name, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.layout import LocationError
from keyscale.state.writing.row_encoder import RowsInvalidError
from keyscale.state_import import import_flink_savepoint, import_spark_checkpoint
from keyscale.state_io import (
    EVENT_TIMERS,
    ChangedOperator,
    KeyChange,
    KeyedStateTable,
    NewOperator,
    NewOperatorState,
    NewState,
    NewTimers,
    StateReader,
    change_keys,
    for_each_key,
    partitions_of,
    spark_writer,
    transform,
    write,
)
from keyscale.state_io.argument import ArgumentInvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

KEY = {"user": pa.string()}
CLICKS = ValueStateDescriptor("clicks", pa.int64())
NUMBERS = ListStateDescriptor("numbers", pa.int64())
TABLE = pa.table({"user": ["ada", "bob"], "value": [3, 5]})
STATE = NewState(CLICKS, TABLE)
NO_SPARK = cast("SparkSession", None)
NAN = float("nan")
ANY: Any = None
"""Has no type, so that the type checker lets wrong arguments pass."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(
        f"file://{tmp_path_factory.mktemp('store')}/job/savepoints/first", [NewOperator("counts", KEY, [STATE])]
    )


@pytest.fixture
def target(source: str, tmp_path: Path) -> str:
    return source.replace("first/manifest.json", tmp_path.name)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("text", "are a str"),
        (b"bytes", "are a bytes"),
        ("", "are a str"),
        (5, "are an int"),
        (None, "are None"),
        ({"user": ["ada"], "value": [1]}, "are a dict"),
        ([{"user": "ada", "value": 1}], "hold a dict"),
        ([["text"]], "hold a list"),
        ([None], "hold None"),
        (pa.chunked_array([[1, 2]]), "are a ChunkedArray"),
    ],
)
@pytest.mark.parametrize("is_keyed", [True, False])
def test_rows_that_are_no_rows_are_refused(target: str, rows: Any, complaint: str, *, is_keyed: bool) -> None:
    operator = (
        NewOperator("o", KEY, [NewState(CLICKS, rows)])
        if is_keyed
        else NewOperator("o", KEY, operator_states=[NewOperatorState(NUMBERS, rows)])
    )
    with pytest.raises(RowsInvalidError, match=rf"{complaint}; give an Arrow table"):
        write(target, [operator])


def test_operators_states_and_rows_may_come_from_generators(target: str) -> None:
    states = (state for state in [NewState(CLICKS, (batch for batch in TABLE.to_batches()))])
    location = write(target, cast("Any", (operator for operator in [NewOperator("o", KEY, cast("Any", states))])))
    with StateReader.open(location) as reader:
        assert reader.table("o", "clicks").reader().read_all().num_rows == TABLE.num_rows


@pytest.mark.parametrize("key", [[NAN], [1.0, NAN]])
def test_a_broadcast_map_cannot_have_a_key_that_a_job_never_finds(target: str, key: Any) -> None:
    for of_type, column in ((pa.float64(), key), (pa.list_(pa.float64()), [key])):
        rows = pa.table({"map_key": pa.array(column, of_type), "value": [*range(len(column))]})
        state = NewOperatorState(MapStateDescriptor("limits", of_type, pa.int64()), rows)
        with pytest.raises(RowsInvalidError, match="map_key is a NaN"):
            write(target, [NewOperator("o", KEY, operator_states=[state])])


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        (lambda: NewState(ANY, CLICKS), r"NewState\.descriptor is None"),
        (lambda: NewState(TABLE, ANY), r"NewState\.descriptor is a Table"),
        (lambda: NewState(cast("Any", ValueStateDescriptor), TABLE), "is the class ValueStateDescriptor"),
        (lambda: NewOperatorState(ANY, TABLE), r"NewOperatorState\.descriptor is None"),
        (lambda: NewTimers(EVENT_TIMERS, TABLE, cast("Any", "string")), r"namespace_type is a str; give an Arrow type"),
        (lambda: NewOperator(ANY, KEY), r"NewOperator\.uid is None"),
        (lambda: NewOperator(cast("Any", KEY), cast("Any", "o")), r"NewOperator\.uid is a dict"),
        (lambda: NewOperator("o", ANY), "key of operator 'o' is not a mapping"),
        (lambda: NewOperator("o", {}), "is not a mapping of columns"),
        (lambda: NewOperator("o", cast("Any", ["user"])), "is not a mapping of columns"),
        (lambda: NewOperator("o", {"user": cast("Any", int)}), "is not a mapping of columns"),
        (lambda: NewOperator("o", KEY, cast("Any", STATE)), r"NewOperator\.states is a NewState; give a list"),
        (lambda: NewOperator("o", KEY, ANY), r"NewOperator\.states is None"),
        (lambda: NewOperator("o", KEY, [cast("Any", NewOperatorState(NUMBERS, []))]), r"states\[0\] is a NewOperatorS"),
        (lambda: NewOperator("o", KEY, (), [cast("Any", STATE)]), r"operator_states\[0\] is a NewState"),
        (lambda: ChangedOperator(cast("Any", 5)), r"ChangedOperator\.uid is an int"),
        (lambda: ChangedOperator(""), r"ChangedOperator\.uid is empty"),
        (lambda: ChangedOperator(states=cast("Any", ["clicks"])), r"ChangedOperator\.states is a list"),
        (lambda: ChangedOperator(new=ANY), r"ChangedOperator\.new is None"),
        (lambda: ChangedOperator(new=[cast("Any", NewOperatorState(NUMBERS, []))]), r"new\[0\] is a NewOperatorState"),
        (lambda: KeyChange("counts", "clicks", cast("Any", 1), 2), r"KeyChange\.key is an int; give text"),
        (lambda: KeyChange("counts", ANY, "ada", 2), r"KeyChange\.state is None"),
        (lambda: KeyChange("counts", "clicks", "ada", time_ms=cast("Any", "1")), r"KeyChange\.time_ms is a str"),
    ],
)
def test_a_declaration_with_an_argument_of_a_wrong_type_is_refused(
    declared: Callable[[], object], complaint: str
) -> None:
    with pytest.raises(ArgumentInvalidError, match=complaint):
        declared()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda _, to: write(to, ANY), "operators is None; give a list"),
        (lambda _, to: write(to, cast("Any", NewOperator("o", KEY))), "operators is a NewOperator"),
        (lambda _, to: write(to, [cast("Any", "o")]), r"operators\[0\] is a str; give a NewOperator"),
        (lambda _, to: write(cast("Any", [NewOperator("o", KEY)]), to), "operators is a str"),
        (lambda _, to: write(to, [], max_parallelism=cast("Any", "4")), "max_parallelism is a str"),
        (lambda _, to: write(to, [], parallelism=cast("Any", 1.5)), "parallelism is a float"),
        (lambda _, to: write(to, [], parallelism=True), "parallelism is a bool"),
        (lambda _, to: write(to, [], hash_id="murmur"), "hash_id is 'murmur'; give 'spark' or 'java'"),
        (lambda _, to: spark_writer.write(NO_SPARK, to, ANY), "operators is None"),
        (
            lambda _, to: spark_writer.write(NO_SPARK, to, [NewOperator("o", KEY, [STATE])], parallelism=1),
            r"NewState\.rows of 'clicks' is a Table; give a DataFrame of Spark",
        ),
        (lambda of, to: transform(of, to, cast("Any", "counts")), "operators is a str; give a mapping"),
        (lambda of, to: transform(of, to, {"counts": cast("Any", "x")}), r"operators\['counts'\] is a str"),
        (lambda of, to: transform(of, to, new=cast("Any", NewOperator("o", KEY))), "new is a NewOperator; give a list"),
        (lambda of, to: transform(of, to, max_parallelism=cast("Any", "4")), "max_parallelism is a str"),
        (lambda of, to: transform(of, to, hash_id=""), "hash_id is ''"),
        (lambda of, to: change_keys(of, to, ANY), "changes is None"),
        (lambda of, to: change_keys(of, to, [cast("Any", {"key": "ada"})]), r"changes\[0\] is a dict"),
        (lambda of, _: for_each_key(of, "counts", ANY), "the function is None"),
        (lambda of, _: for_each_key(of, "counts", cast("Any", dict)), "the function is the class dict"),
        (lambda of, _: [*for_each_key(of, "counts", lambda *_: cast("Any", 5))], "the function returned an int"),
        (lambda of, _: [*for_each_key(of, "counts", lambda *_: "text")], "the function returned a str"),
        (
            lambda of, _: [*partitions_of(of, "counts", "clicks", key=cast("Any", "ada"))[0].batches()],
            r"key is a str; give a tuple with the values of \['user'\]",
        ),
        (lambda of, _: [*partitions_of(of, "counts", "clicks", key=("a", "b"))[0].batches()], "key has 2 values"),
        (lambda of, _: StateReader.open(of, shards_open=ANY), "shards_open is None"),
        (lambda *_: StateReader.of_job(ANY, "job"), "store_url is None"),
        (lambda *_: StateReader.of_job("file:///store", ANY), "job_id is None"),
        (lambda *_: StateReader.of_job("file:///store", "job", cast("Any", "7")), "batch_id is a str"),
        (lambda *_: import_spark_checkpoint(NO_SPARK, ANY, program="job.py", to=None), "checkpoint is None"),
        (lambda *_: import_spark_checkpoint(NO_SPARK, "/c", program=ANY, to=None), "program is None"),
        (
            lambda *_: import_spark_checkpoint(
                NO_SPARK, "/c", program="j.py", to=None, operators={cast("Any", "0"): "a"}
            ),
            "a key of operators is a str; give its number",
        ),
        (
            lambda *_: import_spark_checkpoint(NO_SPARK, "/c", program="j.py", to=None, keys={cast("Any", "a"): "b"}),
            "a key of keys is a str; give a pair",
        ),
        (
            lambda *_: import_spark_checkpoint(
                NO_SPARK, "/c", program="j.py", to=None, values={cast("Any", ("a",)): "b"}
            ),
            "a key of values has 1 part; give a pair",
        ),
        (
            lambda *_: import_spark_checkpoint(NO_SPARK, "/c", program="j.py", to=None, hash_id="murmur"),
            "hash_id is 'murmur'",
        ),
        (lambda *_: import_flink_savepoint(NO_SPARK, ANY, program="j.py", to=None), "location is None"),
        (
            lambda *_: import_flink_savepoint(NO_SPARK, "/s", program="j.py", to=None, operators=cast("Any", ["a"])),
            "operators is a list; give a mapping",
        ),
    ],
)
def test_a_call_with_an_argument_of_a_wrong_type_is_refused(
    source: str, target: str, call: Callable[[str, str], object], complaint: str
) -> None:
    with pytest.raises(ArgumentInvalidError, match=complaint):
        call(source, target)


def test_only_key_group_ranges_select_key_groups(source: str) -> None:
    with StateReader.open(source) as reader:
        table = reader.table("counts", "clicks")
        assert isinstance(table, KeyedStateTable)
        with pytest.raises(ArgumentInvalidError, match="key_groups is a tuple"):
            next(table.batches(key_groups=cast("Any", (0, 3))))


@pytest.mark.parametrize("location", [None, 5, Path("/store/job/savepoints/a")])
def test_a_location_is_text(source: str, location: Any) -> None:
    with pytest.raises(LocationError, match="as text"):
        write(location, [])
    with pytest.raises(LocationError, match="as text"):
        StateReader.open(location)
    with pytest.raises(LocationError, match="as text"):
        transform(source, location)
