"""A query's progress and state are read as of its last committed batch, in the columns that the import works with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812 - as usual in PySpark

from keyscale.state.documents.job_time import JobTime
from keyscale.state.documents.manifest import read_manifest
from keyscale.state.documents.source_positions import SourcePositions, read_positions
from keyscale.state.objects.opening import open_store
from keyscale.state.writing.new_savepoint import NewSavepoint, operator_snapshot
from keyscale.state_import import spark_checkpoint, spark_import, spark_operator
from keyscale.state_import.errors import ImportCountsDifferError, ImportFailedError, SparkCheckpointError
from keyscale.state_import.input_positions import TargetSource
from keyscale.state_import.spark_checkpoint import BatchFacts, SparkCheckpoint
from keyscale.state_import.spark_operator import OperatorKind, SparkOperator, SparkStateReader, VariableKind
from keyscale.state_io.spark_writer import WrittenOperator
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, frame_of

NO_SPARK: Any = None


class Directory:
    """A local directory in the place of one that Hadoop reads."""

    def __init__(self, _: object, path: Path | str) -> None:
        self.path = str(path)

    def child(self, name: str) -> Directory:
        return Directory(None, f"{self.path}/{name}")

    def names(self) -> list[str]:
        folder = Path(self.path)
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []

    def exists(self) -> bool:
        return bool(self.names())

    def read_text(self, name: str) -> str | None:
        file = Path(self.path, name)
        return file.read_text() if file.is_file() else None


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of a query that has committed batch 9 and planned batch 10."""
    monkeypatch.setattr(spark_checkpoint, "HadoopDirectory", Directory)
    monkeypatch.setattr(spark_operator, "HadoopDirectory", Directory)

    def offsets(number: int) -> str:
        facts = {"batchWatermarkMs": 100 * number, "batchTimestampMs": 1000 * number, "conf": {}}
        return "\n".join(["v1", json.dumps(facts), f'{{"t":{{"0":{number}}}}}', "-", f'{{"logOffset":{number - 8}}}'])

    files = {f"offsets/{number}": offsets(number) for number in (2, 8, 9, 10)}
    files |= {f"commits/{number}": f'v1\n{{"nextBatchWatermarkMs":{100 * number + 50}}}' for number in (2, 8, 9)}
    files |= {"commits/11": "v1\n{}", "commits/.9.crc": "", "metadata": '{"id":"q"}'}
    files |= {f"sources/2/{name}": name for name in ("0", "1", "2", "3")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_progress_is_of_the_last_committed_batch_with_the_files_that_say_it(query: Path) -> None:
    found = SparkCheckpoint.read(NO_SPARK, str(query))
    assert (found.location, found.uncommitted) == (str(query), 10)
    assert found.batch == BatchFacts(9, 900, 950, 9000)
    assert found.ends == ('{"t":{"0":9}}', None, '{"logOffset":1}')
    names = {"offsets/9", "offsets/8", "commits/9", "metadata", "sources/2/0", "sources/2/1"}
    assert found.files == {name: (query / name).read_text() for name in names}
    (query / "offsets" / "10").unlink()
    assert SparkCheckpoint.read(NO_SPARK, str(query)).uncommitted is None


@pytest.mark.parametrize(
    ("removed", "complaint"),
    [
        (["offsets/2", "offsets/8", "offsets/9", "offsets/10"], "has no directory `offsets`"),
        (["commits/2", "commits/8", "commits/9"], "has committed no batch yet"),
        (["offsets/8"], "lacks the file offsets/8"),
        (["metadata"], "lacks the file metadata"),
        (["sources/2/1"], "lacks the log of files sources/2/1"),
    ],
)
def test_a_checkpoint_that_lacks_a_part_is_named(query: Path, removed: list[str], complaint: str) -> None:
    for name in removed:
        (query / name).unlink()
    with pytest.raises(SparkCheckpointError, match=complaint):
        SparkCheckpoint.read(NO_SPARK, str(query))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("offsets/9", "v2\n{}", "do not have version v1"),
        ("offsets/9", "v1\nnonsense", "record of a batch in .* cannot be read"),
        ("commits/9", "v1", "record of a batch in .* cannot be read"),
        ("commits/9", "v1\n[]", "record of a batch in .* cannot be read"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_named(query: Path, name: str, text: str, complaint: str) -> None:
    (query / name).write_text(text)
    with pytest.raises(SparkCheckpointError, match=complaint):
        SparkCheckpoint.read(NO_SPARK, str(query))


def test_a_query_without_watermarks_has_none(query: Path) -> None:
    (query / "offsets" / "9").write_text('v1\n{"batchTimestampMs":5}')
    (query / "commits" / "9").write_text("v1\n{}")
    assert SparkCheckpoint.read(NO_SPARK, str(query)).batch == BatchFacts(9, 0, 0, 5)


def struct(**columns: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


TEXT, LONG = T.StringType(), T.LongType()
USER = struct(user=TEXT)
KEY = {"user": "ada"}
TWICE = T.StructType([T.StructField("n", LONG), T.StructField("n", TEXT)])


class Stored:
    """The state of a query as Spark reads it: the frame of each operator and variable."""

    def __init__(self, location: str, *rows: dict[str, Any], frames: dict[tuple[str, str], PlayedFrame]) -> None:
        self.location, self.frames = location, frames
        usual = {"operatorProperties": None}
        self.operators = [SimpleNamespace(**(usual | row)) for row in rows]
        self.read = self
        self.asked: dict[str, str] = {}

    def format(self, name: str) -> Stored:
        self.name = name
        return self

    def options(self, **options: str) -> Stored:
        self.asked = options
        return self

    def load(self, location: str) -> Any:
        assert location == self.location
        if self.name == "state-metadata":
            return SimpleNamespace(collect=lambda: self.operators)
        assert self.asked["batchId"] == "9"
        is_timers = self.asked.get("readRegisteredTimers") == "true"
        return self.frames[self.asked["operatorId"], "timers" if is_timers else self.asked.get("stateVarName", "")]


def reader_of(query: Path, monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any], **frames: Any) -> SparkStateReader:
    (query / "state").mkdir()
    (query / "state" / "0").touch()
    monkeypatch.setattr(spark_operator, "F", played_columns)
    by_place = {tuple(name.split("_", 1)): frame for name, frame in frames.items()}
    stored = Stored(str(query), *rows, frames=cast("Any", {(a[1:], b): frame for (a, b), frame in by_place.items()}))
    return SparkStateReader(cast("Any", stored), SparkCheckpoint.read(NO_SPARK, str(query)))


def frame(value: T.StructType, *values: dict[str, Any] | None) -> Any:
    schema = struct(key=USER, value=value, partition_id=T.IntegerType())
    return frame_of(*({"key": KEY, "value": each, "partition_id": 3} for each in values), schema=schema)


@pytest.mark.parametrize(
    ("name", "value", "rows", "extra", "expected"),
    [
        ("stateStoreSave", TWICE, [{"n": 1, "n_": "a"}], (), [{"value": {"n": 1, "n_2": "a"}}]),
        (
            "dedupeWithinWatermark",
            struct(expiresAtMicros=LONG),
            [{"expiresAtMicros": 7_000_999}],
            ("expires_ms",),
            [{"value": {"expiresAtMicros": 7_000_999}, "expires_ms": 7000}],
        ),
        ("dedupe", struct(__dummy__=TEXT), [{"__dummy__": None}], (), [{"value": {"__dummy__": None}}]),
        (
            "applyInPandasWithState",
            struct(groupState=struct(sum=LONG), timeoutTimestamp=LONG),
            [{"groupState": {"sum": 4}, "timeoutTimestamp": 60}, {"groupState": None, "timeoutTimestamp": 70}],
            ("timeout_ms",),
            [{"value": {"sum": 4}, "timeout_ms": 60}],
        ),
    ],
)
def test_the_values_of_an_operator_are_separate_from_their_times(  # noqa: PLR0917 - a table
    query: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: T.StructType,
    rows: list[dict[str, Any]],
    extra: tuple[str, ...],
    expected: list[dict[str, Any]],
) -> None:
    row = {"operatorId": 2, "operatorName": name}
    reader = reader_of(query, monkeypatch, row, row, o2_=frame(value, *rows))
    [operator] = reader.operators()
    [state] = operator.states
    assert (operator.number, operator.name, state.key, state.extra) == (2, name, tuple(USER.fields), extra)
    found: Any = reader.frame(operator, state)
    assert found.rows == [{"key": KEY, **each} for each in expected]


def test_the_variables_of_a_processor_are_read_by_their_kinds(query: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = [("last", "ValueState"), ("pages", "ListState"), ("views", "MapState"), ("clock", "TimerState")]
    properties = {
        "timeMode": "eventTime",
        "stateVariables": [{"stateName": name, "stateVariableType": kind} for name, kind in variables],
    }
    page = struct(page=TEXT)
    with_ttl = struct(value=page, ttlExpirationMs=LONG)
    of_list = frame_of(
        {"key": KEY, "list_value": [{"page": "a"}, {"page": "b"}], "partition_id": 0},
        schema=struct(key=USER, list_value=T.ArrayType(page), partition_id=LONG),
    )
    of_map = frame_of(
        {"key": KEY, "user_map_key": {"page": "a"}, "user_map_value": {"n": 5}, "partition_id": 0},
        schema=struct(key=USER, user_map_key=page, user_map_value=struct(n=LONG), partition_id=LONG),
    )
    timers = frame_of(
        {"key": KEY, "expiration_timestamp_ms": 77}, schema=struct(key=USER, expiration_timestamp_ms=LONG)
    )
    reader = reader_of(
        query,
        monkeypatch,
        {"operatorId": 1, "operatorName": "symmetricHashJoin"},
        {
            "operatorId": 0,
            "operatorName": "transformWithStateInPySparkExec",
            "operatorProperties": json.dumps(properties),
        },
        o0_last=frame(with_ttl, {"value": {"page": "c"}, "ttlExpirationMs": 8000}),
        o0_pages=of_list,
        o0_views=of_map,
        o0_timers=timers,
    )
    operator, join = reader.operators()
    assert (operator.kind, operator.time_mode) == (OperatorKind.PROCESSOR, "eventTime")
    assert (join.number, join.kind, join.states) == (1, None, ())
    assert "a join of two streams" in join.reason
    kinds = [VariableKind.VALUE, VariableKind.LIST, VariableKind.MAP, VariableKind.TIMERS]
    assert [(each.name, each.kind) for each in operator.states] == [
        (name, kind) for (name, _), kind in zip(variables, kinds, strict=True)
    ]
    columns = [(each.value, each.map_key, each.extra) for each in operator.states]
    assert columns == [
        (tuple(page.fields), (), ("expires_ms",)),
        (tuple(page.fields), (), ()),
        (tuple(struct(n=LONG).fields), tuple(page.fields), ()),
        ((), (), ()),
    ]
    assert {each.key for each in operator.states} == {tuple(USER.fields)}
    loaded: list[dict[str, str]] = []
    options = Stored.options
    monkeypatch.setattr(Stored, "options", lambda asked, **given: (loaded.append(given), options(asked, **given))[1])
    rows: Any = [cast("Any", reader.frame(operator, each)).rows for each in operator.states]
    assert loaded == [
        {"batchId": "9", "operatorId": "0", "stateVarName": "last", "flattenCollectionTypes": "true"},
        {"batchId": "9", "operatorId": "0", "stateVarName": "pages", "flattenCollectionTypes": "false"},
        {"batchId": "9", "operatorId": "0", "stateVarName": "views", "flattenCollectionTypes": "true"},
        {"batchId": "9", "operatorId": "0", "readRegisteredTimers": "true"},
    ]
    assert rows == [
        [{"key": KEY, "value": {"page": "c"}, "expires_ms": 8000}],
        [{"key": KEY, "list_index": 0, "value": {"page": "a"}}, {"key": KEY, "list_index": 1, "value": {"page": "b"}}],
        [{"key": KEY, "map_key": {"page": "a"}, "value": {"n": 5}}],
        [{"key": KEY, "time_ms": 77}],
    ]


def test_a_query_without_state_has_no_operators(query: Path) -> None:
    assert SparkStateReader(NO_SPARK, SparkCheckpoint.read(NO_SPARK, str(query))).operators() == []


@pytest.fixture
def planned(query: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The arguments of an import whose operator `unique` goes on, beside an operator that starts empty."""
    operators = [
        SparkOperator(0, "dedupe", OperatorKind.DEDUPLICATION),
        SparkOperator(1, "stateStoreSave", OperatorKind.AGGREGATION),
    ]
    schema = SimpleNamespace(states=["a state"])
    targets = tuple(SimpleNamespace(uid=uid, schema=schema, key=f"the key of {uid}") for uid in ("unique", "fresh"))
    program: Any = SimpleNamespace(
        operators=targets,
        sources=(TargetSource("clicks", ("kafka",)), TargetSource("more", ("rate",))),
        time_after=lambda batch: JobTime(processing_ms=batch.timestamp_ms),
    )
    reader = SimpleNamespace(
        checkpoint=SparkCheckpoint.read(NO_SPARK, str(query)), operators=lambda: operators, frame=lambda *of: of
    )
    state = SimpleNamespace(name="seen", source=SimpleNamespace(name=""))

    def plan(operator: SparkOperator, target: Any, given: Any, batch: BatchFacts) -> Any:
        assert (given.keys, given.values, batch.number) == ({("unique", "user"): "u"}, {}, 9)
        return SimpleNamespace(uid=target.uid, operator=operator, states=[state], notes=("it begins",))

    monkeypatch.setattr(spark_import, "SparkStateReader", lambda *_: reader)
    monkeypatch.setattr(spark_import.TargetProgram, "load", lambda *_: program)
    monkeypatch.setattr(spark_import, "matched_operators", lambda *_: {0: targets[0]})
    monkeypatch.setattr(spark_import, "plan_operator", plan)
    monkeypatch.setattr(spark_import, "_new_state", lambda plan, of: (plan, of))
    monkeypatch.setattr(
        spark_import, "NewOperator", lambda uid, key, states: SimpleNamespace(uid=uid, key=key, states=states)
    )
    return {
        "checkpoint": str(query),
        "program": "p.py",
        "operators": {1: None},
        "sources": {0: "clicks", 1: None, 2: None},
        "keys": {("unique", "user"): "u"},
    }


def test_a_report_says_what_is_taken_and_what_is_left_out(planned: Any) -> None:
    report = spark_import.import_spark_checkpoint(NO_SPARK, **planned, to=None)
    uncounted = {"rows": None, "entries": None}
    again = "the job reads its records again, and the sink of the query may have a part of them"
    assert report.to_json() == {
        "location": None,
        "batch": 9,
        "watermark_ms": 950,
        "states": ({"spark_operator": 0, "spark_state": "", "uid": "unique", "state": "seen", **uncounted},),
        "sources": ({"spark_input": 0, "uid": "clicks", "end": '{"t":{"0":9}}'},),
        "notes": (
            f"batch 10 of the query is not committed: {again}",
            "operator 1 (aggregation) is left out, as asked",
            "unique: it begins",
            "operator 'fresh' starts empty",
            "input 1 is left out, as asked",
            "input 2 is left out, as asked",
            "source 'more' begins where the program says",
        ),
    }


class Writing:
    """Writes operators without entries, and notes what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows, self.entries = {"seen": 3}, {"seen": 3}
        self.given: list[Any] = []
        self.is_private: list[bool] = []
        real = NewSavepoint.written

        def written(savepoint: NewSavepoint, *, is_private: bool = True) -> Any:
            self.is_private.append(is_private)
            return real(savepoint, is_private=is_private)

        monkeypatch.setattr(spark_import, "_counted", lambda _: self.rows)
        monkeypatch.setattr(spark_import, "write_operator", self.write)
        monkeypatch.setattr(NewSavepoint, "written", written)

    def write(self, savepoint: NewSavepoint, operator: Any, parallelism: int, scratch: str | None) -> Any:
        self.given.append((savepoint.batch_id, operator.uid, operator.key, parallelism, scratch))
        savepoint.store().put(f"{savepoint.layout.savepoint(savepoint.savepoint_id)}file", b"state")
        return WrittenOperator(operator_snapshot(operator.uid, None, []), self.entries)


def session(master: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, defaultParallelism=6))


def test_an_import_writes_and_publishes_the_state_as_of_the_batch(
    planned: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writing, to = Writing(monkeypatch), f"file://{tmp_path}/store/moved/savepoints/of-spark"
    hashing: dict[str, Any] = {"max_parallelism": 32, "hash_id": "java"}
    report = spark_import.import_spark_checkpoint(session("local[2]"), **planned, **hashing, to=to, scratch="there")
    assert report.location == f"{to}/manifest.json"
    assert [(each.uid, each.state, each.rows, each.entries) for each in report.states] == [("unique", "seen", 3, 3)]
    store = open_store(f"file://{tmp_path}/store")
    manifest = read_manifest(store, "moved/savepoints/of-spark/manifest.json")
    assert (manifest.max_parallelism, manifest.hash_id, manifest.batch_id) == (32, "java", 9)
    assert [each.uid for each in manifest.operators] == ["unique"]
    assert manifest.time == JobTime(processing_ms=9000)
    assert manifest.positions is not None
    positions = read_positions(store, manifest.positions)
    assert isinstance(positions, SourcePositions)
    assert (positions.sources, positions.batches[-1].ends) == (("clicks",), ('{"t":{"0":9}}',))
    planned["sources"] = {0: None, 1: None, 2: None}
    elsewhere = session("spark://host:7077")
    spark_import.import_spark_checkpoint(elsewhere, **planned, max_parallelism=4, to=f"{to}-2")
    spark_import.import_spark_checkpoint(elsewhere, **planned, max_parallelism=4, to=f"{to}-3", parallelism=3)
    assert writing.given == [
        (9, "unique", "the key of unique", 6, "there"),
        (-1, "unique", "the key of unique", 4, None),
        (-1, "unique", "the key of unique", 3, None),
    ]
    assert writing.is_private == [True, False, False]


def test_an_import_with_another_number_of_entries_than_rows_leaves_no_object(
    planned: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writing, to = Writing(monkeypatch), f"file://{tmp_path}/store/moved/savepoints/of-spark"
    writing.entries = {"seen": 2}
    with pytest.raises(ImportCountsDifferError, match=r"'unique' has the rows {'seen': 3} and the entries {'seen': 2}"):
        spark_import.import_spark_checkpoint(session("local"), **planned, to=to)
    assert len(writing.given) == 1
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_failure_of_spark_names_its_reason(planned: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writing, to = Writing(monkeypatch), f"file://{tmp_path}/store/moved/savepoints/of-spark"
    failures = iter(["Job aborted\nkeyscale.errors.X: a row has no key\nCaused by", "no column x\nin the plan"])

    def counted(_: Any) -> None:
        raise PySparkException(next(failures))

    monkeypatch.setattr(spark_import, "_counted", counted)
    for reason in ("keyscale.errors.X: a row has no key", "no column x"):
        with pytest.raises(ImportFailedError, match=f"^Spark cannot compute the rows: {reason}$"):
            spark_import.import_spark_checkpoint(session("local"), **planned, to=to)
    assert writing.given == []
