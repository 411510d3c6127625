"""Spark reads the rows of a state shard by shard and writes a savepoint subtask by subtask; its frames are played."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.state.doors.writing import NewSavepoint
from keyscale.state.keyed.descriptors import MapStateDescriptor, ValueStateDescriptor
from keyscale.state.writing.new_savepoint import operator_snapshot
from keyscale.state_io import NewOperator, NewState, StateReader, spark_source, spark_writer
from keyscale.state_io.argument import hashing_of
from keyscale.state_io.spark_source import StateDataSource, StateOptionError, read
from keyscale.state_io.spark_writer import runs_here, write_operator
from keyscale.state_io.verified_state import verify_state
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import KEYS, KINDS, SAVEPOINT, UID, VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

LOCATION = f"{(GOLDEN / 'savepoint-v1').as_uri()}/every-kind/savepoints/{SAVEPOINT}/manifest.json"


class Frame:
    """A frame of Spark, as the batches of each of its partitions."""

    def __init__(self, *partitions: list[pa.RecordBatch]) -> None:
        self.partitions = partitions

    def mapInArrow(  # noqa: N802 - Spark's name
        self, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], _schema: str
    ) -> Frame:
        return Frame(*(list(function(iter(batches))) for batches in self.partitions))

    def union(self, other: Frame) -> Frame:
        return Frame(*self.partitions, *other.partitions)

    def repartitionById(self, number: int, column: str) -> Frame:  # noqa: N802 - Spark's name
        batches = [batch for part in self.partitions for batch in part]
        parts: list[list[pa.RecordBatch]] = [[batches[0].slice(0, 0)] for _ in range(number)]
        for batch in batches:
            for row in range(batch.num_rows):
                parts[batch.column(column)[row].as_py()].append(batch.slice(row, 1))
        return Frame(*parts)

    def collect(self) -> list[Any]:
        return [SimpleNamespace(**row) for part in self.partitions for batch in part for row in batch.to_pylist()]


def frame(*rows: dict[str, Any]) -> Frame:
    """Returns a frame of two partitions."""
    batch = pa.RecordBatch.from_pylist([*rows])
    return Frame([batch.slice(0, 1)], [batch.slice(1)])


def test_tasks_write_the_entries_of_their_subtasks_and_count_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_writer, "DataFrame", Frame)
    clicks = NewState(
        ValueStateDescriptor("clicks", pa.int64()), frame(*({"user": f"u{n}", "value": n} for n in range(20)))
    )
    pages = NewState(
        MapStateDescriptor("pages", pa.string(), pa.int64()),
        frame(*({"user": f"u{n}", "map_key": "home", "value": -n} for n in range(5))),
    )
    operator = NewOperator("counts", {"user": pa.string()}, [clicks, pages])
    empty = NewOperator("empty", {"user": pa.string()}, [])
    savepoint = NewSavepoint.at(f"file://{tmp_path}/store/job/savepoints/written", hashing_of(4, "spark"))
    with savepoint.written():
        written = write_operator(savepoint, operator, 2, str(tmp_path))
        assert written.entries == {"clicks": 20, "pages": 5}
        nothing = write_operator(savepoint, empty, 2, None)
        assert nothing.entries == {}
        savepoint.publish([written.snapshot, nothing.snapshot])
    assert verify_state(savepoint.location).problems == []
    with StateReader.open(savepoint.location) as reader:
        found = {
            name: sorted(
                (row["key"]["user"], row["value"])
                for batch in reader.table("counts", name).batches()
                for row in batch.to_pylist()
            )
            for name in ("clicks", "pages")
        }
    assert found["clicks"] == sorted((f"u{n}", n) for n in range(20))
    assert found["pages"] == sorted((f"u{n}", -n) for n in range(5))
    ranges = [(each.key_group_start, each.key_group_end) for each in written.snapshot.subtasks]
    assert (ranges, len(nothing.snapshot.subtasks)) == ([(0, 1), (2, 3)], 2)


def session(master: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, defaultParallelism=3))


def test_a_session_writes_and_publishes_its_frames_with_all_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_writer, "DataFrame", Frame)
    scratch, made = tmp_path / "scratch", list[str]()
    scratch.mkdir()
    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *of, **how: (made.append(mkdtemp(*of, **how)), made[-1])[1])
    clicks = ValueStateDescriptor("clicks", pa.int64())
    rows = frame(*({"user": f"u{n}", "value": n} for n in range(20)))
    operators = [NewOperator("counts", {"user": pa.string()}, [NewState(clicks, rows)])]
    place, hashing = f"file://{tmp_path}/store/here/savepoints/s", {"max_parallelism": 8, "hash_id": "java"}
    given: dict[str, Any] = {**hashing, "parallelism": 2, "scratch": str(scratch)}
    location = spark_writer.write(session("local[2]"), place, operators, **given)
    assert location == f"{place}/manifest.json"
    assert len([each for each in made if each.startswith(f"{scratch}/keyscale-write-")]) == 2
    with StateReader.open(location) as reader:
        point = reader.point
        table = reader.table("counts", "clicks").reader().read_all()
    assert (point.max_parallelism, point.hash_id) == (8, "java")
    assert sorted(table["value"].to_pylist()) == [*range(20)]
    assert point.manifest is not None
    assert [(each.uid, each.parallelism) for each in point.manifest.operators] == [("counts", 2)]
    assert (tmp_path / "store" / "here").stat().st_mode & 0o077 == 0


def test_a_session_of_a_cluster_shares_the_folder_and_has_at_most_a_task_for_each_key_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[int] = []

    def write(_savepoint: Any, operator: NewOperator, parallelism: int, _scratch: Any) -> spark_writer.WrittenOperator:
        tasks.append(parallelism)
        return spark_writer.WrittenOperator(operator_snapshot(operator.uid, None, []), {})

    monkeypatch.setattr(spark_writer, "write_operator", write)
    operators = [NewOperator("counts", {"user": pa.string()})]
    for most in (2, 8):
        place = f"file://{tmp_path}/store/there/savepoints/{most}"
        spark_writer.write(session("spark://host:7077"), place, operators, max_parallelism=most)
    assert tasks == [2, 3]
    assert (tmp_path / "store" / "there").stat().st_mode & 0o077 != 0


@pytest.mark.parametrize(
    ("master", "is_here"), [("local[4]", True), ("local", True), ("spark://h:1", False), (None, False)]
)
def test_only_local_tasks_run_as_this_user(master: str | None, is_here: bool) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    assert runs_here(spark) is is_here


def rows_of(**options: str) -> tuple[list[dict[str, Any]], int]:
    """Returns the rows of the data source, and the number of its parts."""
    source = StateDataSource({"path": LOCATION, "operator": UID, "state": "map", **options})
    reader = source.reader(cast("Any", source.schema()))
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()], len(parts)


def test_the_rows_of_a_state_are_read_shard_by_shard() -> None:
    rows, parts = rows_of()
    expected = sorted((number, name, count) for _, number in KEYS for name, count in KINDS["map"])
    assert sorted((row["key"]["number"], row["map_key"], row["value"]) for row in rows) == expected
    assert parts == 2


def test_one_key_is_read_alone_and_a_map_as_one_row_if_asked() -> None:
    rows, parts = rows_of(key='["a\\u0000b", 5]')
    assert sorted((row["map_key"], row["value"]) for row in rows) == sorted(KINDS["map"])
    assert parts == 1
    nested, parts = rows_of(FlattenCollectionTypes="FALSE")
    assert (len(nested), parts) == (len(KEYS), 2)
    assert dict(nested[0]["value"]) == dict(KINDS["map"])
    (row,), _ = rows_of(key='["a\\u0000b", 5]', flattenCollectionTypes="false")
    assert row["key"] == {"name": "a\0b", "number": 5}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"path": LOCATION, "operator": UID}, "the option 'state' is required"),
        ({"path": "", "operator": UID, "state": "map"}, "the option 'path' is required"),
        ({"path": LOCATION, "operator": UID, "state": "map", "flattenCollectionTypes": "no"}, "is true or false"),
    ],
)
def test_an_option_that_is_missing_or_wrong_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(StateOptionError, match=complaint):
        StateDataSource(options).schema()


class Reading:
    """A session of Spark, and a reader with options, whose frame is its options."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.registered: list[type] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.read = self

    def format(self, name: str) -> Reading:
        return Reading(format=name)

    def option(self, name: str, value: str) -> Reading:
        return Reading(**self.options, **{name: value})

    def load(self) -> dict[str, str]:
        return self.options


def test_each_state_of_a_snapshot_is_a_frame_of_its_own() -> None:
    session: Any = Reading()
    found = read(session, LOCATION)
    assert session.registered == [StateDataSource]
    assert found.keys() == {(UID, name) for name in (*VALUES, *KINDS)}
    for (uid, name), options in found.items():
        assert options == {"format": "keyscale-state", "path": LOCATION, "operator": uid, "state": name}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (pa.int8(), pa.int8()),
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.binary(16), pa.binary()),
        (pa.list_(pa.uint8()), pa.list_(pa.int16())),
        (pa.map_(pa.uint16(), pa.uint32()), pa.map_(pa.int32(), pa.int64())),
        (pa.struct([("a", pa.uint8()), ("b", pa.string())]), pa.struct([("a", pa.int16()), ("b", pa.string())])),
    ],
    ids=str,
)
def test_a_column_has_a_type_of_spark_that_holds_all_its_values(stored: pa.DataType, shown: pa.DataType) -> None:
    assert spark_source._spark_type(stored) == shown
