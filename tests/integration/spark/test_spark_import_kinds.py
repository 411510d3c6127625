"""Each kind of Spark's state goes on in a job as it would have gone on in Spark."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.state_import import import_spark_checkpoint
from keyscale.state_io import StateReader
from tests.support.drivers.assignments import assignment_of
from tests.support.drivers.driver_process import DriverProcess, sink_rows
from tests.support.spark.moved_query import BEGIN, COLUMNS, END, MovedQuery, views
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

_HEAD = f"""
import datetime as dt

import pyarrow as pa

from keyscale import *

env = StreamEnvironment.current()
frame = env.spark.readStream.schema("{COLUMNS}").option("maxFilesPerTrigger", 1).json(env.parameters["input"])
views = env.stream(frame, timestamp="at", max_out_of_orderness_ms=5000)
"""
_TAIL = """
output.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
"""
WITHIN_WATERMARK = """
class Ids(KeyedProcessFunction):
    def process_element(self, row, context):
        yield (row.id,)


unique = views.key_by("id").deduplicate(ttl=Ttl(10_000, time_domain=TimeDomain.EVENT)).uid("unique")
output = unique.key_by("page").process(Ids(), output={"id": "bigint"}).uid("ids")
"""
TOTALS = """
class Totals(AggregateFunction):
    def create_accumulator(self):
        return {"count": 0, "sum": 0.0, "least": None, "most": None}

    def add(self, row, held):
        least, most = (pick(x for x in (held[name], row.amount) if x is not None) for name, pick in PICKS)
        return {"count": held["count"] + 1, "sum": held["sum"] + row.amount, "least": least, "most": most}

    def get_result(self, held):
        return held["count"], held["sum"] / held["count"], held["least"], held["most"]

    def merge(self, left, right):
        raise NotImplementedError


PICKS = (("least", min), ("most", max))
held = pa.struct([("count", pa.int64()), ("sum", pa.float64()), ("least", pa.float64()), ("most", pa.float64())])
columns = {"views": "bigint", "mean": "double", "least": "double", "most": "double"}
output = views.key_by("page").aggregate(Totals(), accumulator=held, output=columns).uid("totals")
"""
COUNTS = """
class Counts(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))
        self.total = context.get_state(ValueStateDescriptor("total", pa.float64()))

    def process_element(self, row, context):
        self.count.update((self.count.value() or 0) + 1)
        self.total.update((self.total.value() or 0.0) + row.amount)
        yield context.current_key, self.count.value(), self.total.value()


columns = {"page": "string", "count": "bigint", "total": "double"}
output = views.key_by("page").process(Counts(), output=columns).uid("counts")
"""
VISITS = """
import datetime as dt

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class Visits(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "views bigint")
        self.amounts = handle.getListState("amounts", "amount double")
        self.ids = handle.getMapState("times seen", "id bigint", "times bigint")

    def handleInputRows(self, key, rows, timerValues):
        count = self.count.get()[0] if self.count.exists() else 0
        for row in rows:
            count += 1
            self.amounts.appendValue((row.amount,))
            times = self.ids.getValue((row.id,))
            self.ids.updateValue((row.id,), ((times[0] if times else 0) + 1,))
            self.handle.registerTimer(int(row.at.replace(tzinfo=dt.timezone.utc).timestamp()) * 1000 + 9000)
        self.count.update((count,))
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        amounts = [amount for (amount,) in self.amounts.get()]
        yield Row(
            page=key[0],
            at_ms=expiredTimerInfo.getExpiryTimeInMs(),
            views=self.count.get()[0],
            weighted=sum(place * amount for place, amount in enumerate(amounts)),
            ids=len(list(self.ids.keys())),
        )

    def close(self):
        pass
"""
VISITS_COLUMNS = "page string, at_ms bigint, views bigint, weighted double, ids bigint"
LEASES = """
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class Leases(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.last = handle.getValueState("last", "amount double", 3_600_000)
        self.pages = handle.getListState("pages", "page string", 3_600_000)
        self.times = handle.getMapState("times", "page string", "at timestamp", 3_600_000)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.last.update((row.amount,))
            self.pages.appendValue((row.page,))
            self.times.updateValue((row.page,), (row.at,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 7_200_000)
        yield Row(id=key[0])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return iter(())

    def close(self):
        pass
"""


def _processed(name: str, columns: str, time_mode: str) -> str:
    """The declaration of a processor over the key that is its first column."""
    key = columns.partition(" ")[0]
    return (
        f"output = views.key_by({key!r}).transform_with_state({name}(), {columns!r}, time_mode={time_mode!r})\n"
        f"output = output.uid('processor')"
    )


def processor_of(text: str, name: str) -> Any:
    """The processor in a text, which Spark's workers get by value."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(text, names)  # noqa: S102 - a text of this module
    return names[name]()


def moved_query(spark: SparkSession, home: Path, program: str) -> MovedQuery:
    random = Random(11)
    files = [*(views(random, number) for number in range(4)), [END]]
    moved = MovedQuery(spark, home, files, program)
    moved.feed(2)
    return moved


def rows_of(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Rows without the key of the last record, which only ends the stream."""
    values = [tuple((row if isinstance(row, dict) else row.asDict()).values()) for row in rows]
    return [row for row in values if "end" not in row]


def go_on(moved: MovedQuery, query: DataFrame, mode: str, **options: Any) -> tuple[list[Any], list[Any]]:
    """Imports the query after two files; returns what it emits for the rest itself, and what the job emits."""
    moved.run(query, mode)
    reports = [moved.imported(parallelism, **options) for parallelism in (1, 4)]
    moved.feed(len(moved.files))
    moved.run(query, mode)
    of_spark = rows_of([row for number, row in moved.emitted if number > reports[0].batch])
    one, four = (
        rows_of(moved.continued(report, parallelism, first=2).output("files"))
        for report, parallelism in zip(reports, (4, 1), strict=True)
    )
    assert of_spark
    assert sorted(one) == sorted(four)
    return of_spark, one


def last_by_key(rows: list[tuple[Any, ...]]) -> dict[Any, tuple[Any, ...]]:
    """The result of each key with the most records, which is its second column."""
    found: dict[Any, tuple[Any, ...]] = {}
    for row in sorted(rows, key=lambda row: row[1]):
        found[row[0]] = row
    return found


def test_keys_within_the_watermark_are_remembered(spark: SparkSession, tmp_path: Path) -> None:
    moved = moved_query(spark, tmp_path, f"{_HEAD}{WITHIN_WATERMARK}{_TAIL}")
    random = Random(5)
    at = [(BEGIN + dt.timedelta(seconds=second)).isoformat() for second in range(60)]
    for number in range(4):  # an id twice within two seconds: also in two files, and in two batches
        begin = number * 10
        moved.files[number] = [
            {"id": begin + second, "page": "/", "at": at[begin + second], "amount": float(second)}
            for second in range(10)
        ]
        moved.files[number] += [{**row, "amount": -1.0} for row in random.sample(moved.files[number], 5)]
        if number:
            moved.files[number] += [{**row, "amount": -2.0} for row in moved.files[number - 1][7:10]]
    for file in moved.input.iterdir():
        file.unlink()
    moved.feed(2)
    of_spark, of_job = go_on(moved, moved.timed().dropDuplicatesWithinWatermark(["id"]), "append")
    assert sorted(row[0] for row in of_spark) == list(range(20, 40))
    assert sorted(row[0] for row in of_job) == [-1, *range(20, 40)]


def test_an_aggregation_goes_on_from_its_buffer(spark: SparkSession, tmp_path: Path) -> None:
    moved = moved_query(spark, tmp_path, f"{_HEAD}{TOTALS}{_TAIL}")
    query = (
        moved.timed()
        .groupBy("page")
        .agg(
            F.count("*").alias("views"),
            F.avg("amount").alias("mean"),
            F.min("amount").alias("least"),
            F.max("amount").alias("most"),
        )
    )
    names = {"count": "count", "sum": "sum", "least": "min", "most": "max"}
    value = ", ".join(f"'{name}', value.`{spark_name}`" for name, spark_name in names.items())
    of_spark, of_job = go_on(moved, query, "update", values={("totals", "accumulator"): f"named_struct({value})"})
    assert last_by_key(of_job) == last_by_key(of_spark)


def test_group_states_go_on_in_the_states_of_a_function(spark: SparkSession, tmp_path: Path) -> None:
    import pandas as pd  # noqa: PLC0415 - only here

    def counted(key: Any, frames: Any, state: Any) -> Any:
        count, total = state.get if state.exists else (0, 0.0)
        for frame in frames:
            count, total = count + len(frame), total + float(frame["amount"].sum())
        state.update((count, total))
        yield pd.DataFrame({"page": [key[0]], "count": [count], "total": [total]})

    counted.__module__ = "__main__"  # by value
    moved = moved_query(spark, tmp_path, f"{_HEAD}{COUNTS}{_TAIL}")
    output, state = "page string, count bigint, total double", "count bigint, total double"
    query = moved.timed().groupBy("page").applyInPandasWithState(counted, output, state, "update", "NoTimeout")
    of_spark, of_job = go_on(moved, query, "update")
    assert last_by_key(of_job) == last_by_key(of_spark)


def rocksdb(spark: SparkSession) -> Callable[[], None]:
    """Sets the state store that processors need; returns what unsets it."""
    setting = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(setting, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    return lambda: spark.conf.unset(setting)


def test_a_processor_goes_on_with_its_values_lists_maps_and_timers(spark: SparkSession, tmp_path: Path) -> None:
    moved = moved_query(spark, tmp_path, f"{_HEAD}{VISITS}{_processed('Visits', VISITS_COLUMNS, 'EventTime')}{_TAIL}")
    unset = rocksdb(spark)
    try:
        query = (
            moved.timed()
            .groupBy("page")
            .transformWithState(processor_of(VISITS, "Visits"), VISITS_COLUMNS, "append", "EventTime")
        )
        of_spark, of_job = go_on(moved, query, "append")
    finally:
        unset()
    assert sorted(of_job) == sorted(of_spark)


def test_rows_of_a_processor_expire_and_its_timers_fire_when_they_would_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    moved = moved_query(spark, tmp_path, f"{_HEAD}{LEASES}{_processed('Leases', 'id bigint', 'ProcessingTime')}{_TAIL}")
    checkpoint = tmp_path / "checkpoint"
    unset = rocksdb(spark)
    try:
        frame = spark.readStream.schema(COLUMNS).json(str(moved.input))
        processor = processor_of(LEASES, "Leases")
        query = (
            frame.groupBy("id")
            .transformWithState(processor, "id bigint", "append", "ProcessingTime")
            .writeStream.option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda batch, _: batch.collect())
            .start()
        )
        wait_until((checkpoint / "commits" / "0").exists, 300, what="the first batch of the query")
        query.stop()
    finally:
        unset()
    location = moved.imported(2).location
    assert location is not None
    last = spark.read.format("statestore").option("stateVarName", "last").option("batchId", 0).load(str(checkpoint))
    expected = {row.key.id: (row.value.value.amount, row.value.ttlExpirationMs) for row in last.collect()}
    with StateReader.open(location) as reader:
        tables = {table.name: table.reader().read_all().to_pylist() for table in reader.tables("processor")}
    amounts = {row["key"]["id"]: (row["value"]["amount"], _end_ms(row)) for row in tables["last"]}
    assert amounts == expected
    ends = {key: at_ms for key, (_, at_ms) in expected.items()}
    for name in ("pages", "times"):
        assert {(row["key"]["id"], _end_ms(row)) for row in tables[name]} == set(ends.items())
    assert {row["key"]["id"]: row["time_ms"] for row in tables["_processing_timers"]} == {
        key: at_ms + 3_600_000 for key, at_ms in ends.items()
    }
    listed = {(row["key"]["id"], row["map_key"]) for row in tables["_registered_processing_timers"]}
    assert listed == {(row["key"]["id"], row["time_ms"]) for row in tables["_processing_timers"]}
    pages: dict[int, list[str]] = {}
    for row in (row for file in moved.files[:2] for row in file):
        pages.setdefault(row["id"], []).append(row["page"])
    found: dict[int, list[str]] = {}
    for row in sorted(tables["pages"], key=lambda row: row["list_index"]):
        found.setdefault(row["key"]["id"], []).append(row["value"]["page"])
    assert {key: sorted(each) for key, each in found.items()} == {key: sorted(each) for key, each in pages.items()}


def _end_ms(row: dict[str, Any]) -> int:
    """When a row of the processor expires, after an hour."""
    return round(row["ttl_started_at"].timestamp() * 1000) + 3_600_000


def test_a_driver_reads_the_files_that_the_query_has_not_read(
    spark: SparkSession, tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    moved = moved_query(spark, tmp_path, f'{_HEAD}output = views.key_by("id").deduplicate().uid("unique")\n{_TAIL}')
    moved.run(moved.timed().dropDuplicates(["id"]))
    report = import_spark_checkpoint(
        spark,
        str(tmp_path / "checkpoint"),
        program=moved.program_file,
        parameters=moved.parameters,
        to=f"file://{tmp_path}/store/spark/savepoints/query",
        max_parallelism=16,
        parallelism=3,
    )
    moved.feed(len(moved.files))
    driver = DriverProcess.start(tmp_path / "driver", artifact=moved.program_file)
    drivers.append(driver)
    restore = {"restore_mode": "rewind", "restore_from": report.location, "restore_id": "spark"}
    checkpoints = CheckpointSettings(interval_ms=3_600_000)
    driver.assign(assignment_of(moved.program_file, tmp_path, 1, 2, checkpoints=checkpoints, **restore))
    out = tmp_path / "out"
    found = lambda: [row["id"] for row in sink_rows(out)] if out.exists() else []  # noqa: E731 - a short name
    of_spark = {row.id for _, row in moved.emitted}
    rest = {row["id"] for file in moved.files for row in file} - of_spark
    driver.wait_for(lambda: -1 in found(), "the last record")
    assert sorted(found()) == sorted(rest)
