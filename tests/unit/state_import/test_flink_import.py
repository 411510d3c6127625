"""A job goes on exactly where a real job of Flink has stopped, with all kinds of its state and its timers."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    TimeDomain,
    Ttl,
    TumblingWindows,
    ValueStateDescriptor,
)
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.sources.kafka import positions_at
from keyscale.jobs.streams.streams import DataStream
from keyscale.state.doors.catalogue import SourcePositions, read_manifest, read_positions
from keyscale.state.doors.objects import open_store
from keyscale.state.doors.writing import NewSavepoint
from keyscale.state_import import flink_import, flink_offsets, import_flink_savepoint
from keyscale.state_import.errors import (
    FlinkSavepointError,
    ImportCountsDifferError,
    ImportUnmappedError,
    ImportUnsupportedError,
)
from keyscale.state_import.flink_metadata import ElementsFile, StateFile, operator_id, read_metadata
from keyscale.state_import.input_positions import FILES, KAFKA, KAFKA_SOURCE, TargetSource
from keyscale.state_import.target_program import TargetProgram, target_operators
from keyscale.state_io import StateReader
from keyscale.state_io.verified_state import verify_state
from tests.support.rehearsal.rehearsal import MAX_PARALLELISM, Rehearsal
from tests.unit.state_import.test_flink_keyed_state import BY_CUSTOMER, SAVEPOINTS, last

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.jobs.graph.topology import Topology
    from keyscale.state_import import FlinkImportReport

ORDER = pa.struct([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("discount", pa.int32())])
TTL = Ttl.days(36_500)
SCHEMA = pa.schema([("customer", pa.string()), ("at", pa.int64())])
OUTPUT = pa.schema([("customer", pa.string()), ("what", pa.string())])


class Totals(KeyedProcessFunction):
    """The job of FlinkSavepoints.java, which tells what it has."""

    value_type: pa.DataType = pa.int64()

    def open(self, context: Any) -> None:
        self.states = {
            "count": context.get_state(ValueStateDescriptor("count", self.value_type)),
            "last": context.get_state(ValueStateDescriptor("last", ORDER)),
            "pair": context.get_state(
                ValueStateDescriptor("pair", pa.struct([("who", pa.string()), ("order", pa.int64())]))
            ),
            "recent": context.get_state(ValueStateDescriptor("recent", pa.int64(), TTL)),
        }
        self.labels = context.get_list_state(ListStateDescriptor("labels", pa.string()))
        self.recent_list = context.get_list_state(ListStateDescriptor("recent_list", pa.int64(), TTL))
        self.amounts = context.get_map_state(MapStateDescriptor("amounts", pa.string(), pa.float64()))
        self.recent_map = context.get_map_state(MapStateDescriptor("recent_map", pa.string(), pa.int64(), TTL))

    def process_element(self, row: Any, _context: Any) -> Iterator[tuple[str, str]]:
        held = {name: state.value() for name, state in self.states.items()}
        self.states["count"].update(held["count"] + 1)
        held |= {"labels": [*self.labels.get()], "recent_list": [*self.recent_list.get()]}
        held |= {"amounts": dict(sorted(self.amounts.items())), "recent_map": dict(sorted(self.recent_map.items()))}
        yield row.customer, repr(held)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[str, str]]:
        yield context.current_key, f"timer {timestamp}"


def topology(function: KeyedProcessFunction) -> Topology:
    builder = TopologyBuilder()
    source = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    timed = source.uid("records").with_timestamps("at")
    timed.key_by("customer").process(function, output=OUTPUT).uid("totals").sink_to(cast("Any", None)).uid("sink")
    return builder.build()


def imported(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    to: str | None,
    function: KeyedProcessFunction,
    *,
    kind: str = KAFKA,
    **options: Any,
) -> FlinkImportReport:
    return imported_for(topology(function), monkeypatch, name, to, kind=kind, **options)


def imported_for(
    graph: Topology,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    to: str | None,
    *,
    kind: str = KAFKA,
    **options: Any,
) -> FlinkImportReport:
    program = TargetProgram(target_operators(graph), (TargetSource("orders", (kind,)),), graph)
    monkeypatch.setattr(TargetProgram, "load", lambda *_: program)
    return import_flink_savepoint(cast("Any", None), str(SAVEPOINTS / name), program="job.py", to=to, **options)


def held(customer: str) -> dict[str, Any]:
    """What the function tells of a customer after the orders of Flink's job."""
    orders = BY_CUSTOMER[customer]
    order = last(orders)
    return {
        "count": len(orders),
        "last": {name: order[name] for name in ORDER.names},
        "pair": {"who": customer, "order": orders[-1]},
        "recent": orders[-1],
        "labels": [f"order, {each} é" for each in orders],
        "recent_list": orders,
        "amounts": dict(sorted((f"m{each % 4}", each * 1.5) for each in orders)),
        "recent_map": dict(sorted((f"r{each % 4}", each) for each in orders)),
    }


def test_a_job_goes_on_where_flinks_job_has_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    to = f"file://{tmp_path}/store/rehearsed/savepoints/of-flink"
    scratch, used = tmp_path / "scratch", list[Any]()
    scratch.mkdir()
    known = flink_import.write_operator

    def noted(*arguments: Any, **options: Any) -> Any:
        used.append(options["scratch"].parent)
        return known(*arguments, **options)

    monkeypatch.setattr(flink_import, "write_operator", noted)
    given: dict[str, Any] = {"max_parallelism": MAX_PARALLELISM, "parallelism": 2, "scratch": scratch}
    report = imported(monkeypatch, "rocksdb-2", to, Totals(), **given)
    assert report.location is not None
    assert verify_state(report.location).problems == []
    assert (used, list(scratch.iterdir())) == ([scratch], [])
    with StateReader.open(report.location) as reader:
        assert reader.point.manifest is not None
        assert [(each.uid, each.parallelism) for each in reader.point.manifest.operators] == [("totals", 2)]
    counts = {state.flink_state: (state.rows, state.entries) for state in report.states}
    timers = [f"_timer_state/{each}_user-timers" for each in ("event", "processing")]
    assert counts == {
        **dict.fromkeys(["count", "last", "pair", "recent"], (10, 10)),
        **dict.fromkeys(["amounts", "recent_map"], (20, 20)),
        **dict.fromkeys(["labels", "recent_list", *timers], (40, 40)),
    }
    of_source, of_generic = report.notes
    assert of_source == "source 'orders' begins where the program says"
    assert "'generic' is left out: Kryo has written the class java.util.UUID" in of_generic
    batches = [[*BY_CUSTOMER], [*BY_CUSTOMER]]
    tables = [pa.Table.from_pylist([{"customer": each, "at": 900_000} for each in batch], SCHEMA) for batch in batches]
    tables.append(pa.Table.from_pylist([{"customer": "c0", "at": 1_000_020}], SCHEMA))
    job = Rehearsal(tmp_path, topology(Totals()), tables, cast("Any", None))
    job.start(1, report.location)
    job.run_batches(1)
    assert {row["customer"]: row["what"] for row in job.output("sink")} == {key: repr(held(key)) for key in BY_CUSTOMER}
    job.drain()
    told = [(row["customer"], row["what"]) for row in job.output("sink")[10:]]
    assert sorted(each for each in told if each[1].startswith("timer")) == sorted(
        (key, f"timer {1_000_000 + order}") for key, orders in BY_CUSTOMER.items() for order in orders if order < 20
    )
    assert dict(told[:10]) == {key: repr(held(key) | {"count": 5}) for key in BY_CUSTOMER}


def test_the_time_to_live_begins_with_flinks_last_access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    to = f"file://{tmp_path}/store/moved/savepoints/of-flink"
    monkeypatch.setattr(flink_import, "now_ms", lambda: 5)  # it does not begin with the import
    report = imported(monkeypatch, "heap-1", to, Totals(), hash_id="java")
    assert report.location is not None
    reader = StateReader.open(report.location)
    assert (reader.point.max_parallelism, reader.point.hash_id) == (8, "java")
    (table,) = (each for each in reader.tables("totals") if each.name == "recent")
    years = {row["ttl_started_at"].year for batch in table.batches() for row in batch.to_pylist()}
    assert years == {2026}


def test_rows_are_written_in_small_parts_each_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stores = [f"file://{tmp_path}/store/{name}/savepoints/of-flink" for name in ("whole", "parts")]
    whole = imported(monkeypatch, "heap-1", stores[0], Totals())
    monkeypatch.setattr(flink_import, "_TOGETHER", 3)
    in_parts = imported(monkeypatch, "heap-1", stores[1], Totals())
    assert replace(in_parts, location=whole.location) == whole
    assert all(state.rows == state.entries for state in in_parts.states)


def test_a_row_that_has_not_become_an_entry_fails_the_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Losing:
        """Encodes all rows but the last of each part."""

        def __init__(self, encoder: Any) -> None:
            self.encoder = encoder

        def encode(self, batch: pa.RecordBatch) -> Any:
            return self.encoder.encode(batch.slice(0, batch.num_rows - 1))

    known = flink_import.encoder_of
    monkeypatch.setattr(flink_import, "encoder_of", lambda *of, **with_: Losing(known(*of, **with_)))
    with pytest.raises(
        ImportCountsDifferError, match=r"operator 'totals' has the rows .*'count': 10.* and the entries"
    ):
        imported(monkeypatch, "heap-1", f"file://{tmp_path}/store/moved/savepoints/of-flink", Totals())
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("splits", "found"),
    [
        ([("a", 0, 0), ("b", 1, 7), ("a", 1, 5)], {"a": {"0": 0, "1": 5}, "b": {"1": 7}}),
        ([("a", 0, -3)], ImportUnsupportedError),
        ([("a", 0, 1), ("a", 0, 2)], FlinkSavepointError),
    ],
)
def test_each_partition_is_in_one_reader_and_has_an_offset(
    monkeypatch: pytest.MonkeyPatch, splits: list[tuple[str, int, int]], found: Any
) -> None:
    monkeypatch.setattr(flink_offsets, "_splits", lambda file: file.splits)
    readers = [SimpleNamespace(offsets={flink_offsets._STATE: ()}, splits=[each]) for each in splits]
    operator: Any = SimpleNamespace(elements=readers)
    if isinstance(found, dict):
        assert flink_offsets.kafka_offsets(operator) == found
    else:
        with pytest.raises(found):
            flink_offsets.kafka_offsets(operator)
    other: Any = SimpleNamespace(elements=[SimpleNamespace(offsets={"other": ()})])
    assert flink_offsets.kafka_offsets(other) is None


def test_a_dry_run_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    report = imported(
        monkeypatch, "heap-1", None, Totals(), states={("totals", "labels"): None, ("totals", "recent"): None}
    )
    assert report.location is None
    assert {state.rows for state in report.states} == {None}
    assert "totals: Flink's state 'labels' is left out, as asked" in report.notes
    assert "totals: state 'labels' starts empty" in report.notes


def test_operator_state_that_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    elements = ElementsFile(StateFile(None), {"limits": (0,), "files": (0, 8)})
    found = read_metadata(str(SAVEPOINTS / "heap-1"))
    beside = tuple(replace(each, elements=(elements,)) if each.keyed else each for each in found)
    monkeypatch.setattr(flink_import, "read_metadata", lambda _: beside)
    report = imported(monkeypatch, "heap-1", None, Totals())
    assert [each for each in report.notes if "operator state" in each] == [
        "the operator state 'files', 'limits' of Flink's operator totals is left out"
    ]


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfText(Totals):
        value_type = pa.string()

    with pytest.raises(ImportUnmappedError, match="state 'count' holds int64 in Flink, and string"):
        imported(monkeypatch, "heap-1", None, OfText())
    with pytest.raises(ImportUnmappedError, match="state 'labels' is a LIST in Flink and a value in 'totals'"):
        imported(monkeypatch, "heap-1", None, Totals(), states={("totals", "labels"): "last"})
    with pytest.raises(ImportUnmappedError, match="two states of Flink would go to state 'count' of operator 'totals'"):
        imported(monkeypatch, "heap-1", None, Totals(), states={("totals", "recent"): "count"})
    with pytest.raises(ImportUnmappedError, match="operator 'totals' has no state 'gone'"):
        imported(monkeypatch, "heap-1", None, Totals(), states={("totals", "recent"): "gone"})
    with pytest.raises(ImportUnmappedError, match="the savepoint has no operator 'unknown'"):
        imported(monkeypatch, "heap-1", None, Totals(), operators={"unknown": "totals"})
    with pytest.raises(ImportUnmappedError, match="the program has no operator 'unknown'"):
        imported(monkeypatch, "heap-1", None, Totals(), operators={"totals": "unknown"})
    left_out = imported(monkeypatch, "heap-1", None, Totals(), operators={operator_id("totals"): None})
    assert left_out.states == ()
    assert "Flink's operator totals is left out, as asked" in left_out.notes


class Elsewhere(KeyedProcessFunction):
    """Has other times to live than Flink's job."""

    def open(self, context: Any) -> None:
        in_event_time = Ttl(1000, time_domain=TimeDomain.EVENT)
        context.get_state(ValueStateDescriptor("count", pa.int64(), TTL))
        context.get_state(ValueStateDescriptor("recent", pa.int64()))
        context.get_list_state(ListStateDescriptor("recent_list", pa.int64(), in_event_time))
        context.get_map_state(MapStateDescriptor("recent_map", pa.string(), pa.int64(), TTL))

    def process_element(self, row: Any, context: Any) -> None:
        raise NotImplementedError


def test_times_to_live_that_differ_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    report = imported(monkeypatch, "heap-1", None, Elsewhere())
    assert {"count", "recent", "recent_list", "recent_map"} <= {state.flink_state for state in report.states}
    assert sorted(each.removeprefix("totals: ") for each in report.notes if "TTL" in each) == [
        "state 'recent' keeps all rows: it has no TTL in the program",
        "the TTL of state 'count' begins with the import: Flink's state has none",
        "the TTL of state 'recent_list' counts in event time from the time of Flink's last access",
    ]


def test_timers_without_a_place_in_the_program_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TopologyBuilder()
    source = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    sums = source.uid("records").with_timestamps("at").key_by("customer")
    summed = sums.aggregate(Sum(), accumulator=pa.int64(), output=pa.schema([("sum", pa.int64())])).uid("totals")
    summed.sink_to(cast("Any", None)).uid("sink")
    given: dict[str, Any] = {"states": {("totals", "count"): "accumulator"}}
    report = imported_for(builder.build(), monkeypatch, "heap-1", None, **given)
    assert [(state.flink_state, state.state) for state in report.states] == [("count", "accumulator")]
    assert sorted(each for each in report.notes if "timers" in each) == [
        f"totals: Flink's timers '_timer_state/{each}_user-timers' are left out: operator 'totals' has no such timers"
        for each in ("event", "processing")
    ]


class Sum:
    """The sum of the times of a window's records."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.at)

    def get_result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)

    def merge(self, left: int, right: int) -> int:
        return left + right


def test_windows_that_flink_has_begun_end_in_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64()), ("at", pa.int64())])
    builder = TopologyBuilder()
    source = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), schema), None)
    windowed = source.uid("records").with_timestamps("at").key_by("key").window(TumblingWindows(1000))
    sums = windowed.aggregate(Sum(), accumulator=pa.int64(), output=pa.schema([("sum", pa.int64())])).uid("windows")
    sums.sink_to(cast("Any", None)).uid("sink")
    graph = builder.build()
    to = f"file://{tmp_path}/store/rehearsed/savepoints/of-flink"
    given: dict[str, Any] = {"operators": {"totals": None}, "max_parallelism": MAX_PARALLELISM}
    report = imported_for(graph, monkeypatch, "avro-1", to, **given)
    tables = [pa.Table.from_pylist([{"key": 0, "at": at}], schema) for at in (1500, 5000)]
    job = Rehearsal(tmp_path, graph, tables, cast("Any", None))
    job.start(1, report.location)
    job.drain()
    window = {"window_start": 1000, "window_end": 2000}
    found = sorted(job.output("sink"), key=lambda row: row["key"])
    assert found == [{"key": 0, **window, "sum": 10 + 1500}, {"key": 1, **window, "sum": 11}]


OFFSETS = {"orders": {"0": 100, "1": 200, "2": 300}}


@pytest.mark.parametrize("kind", [KAFKA, KAFKA_SOURCE])
def test_a_kafka_source_goes_on_at_the_offsets_of_all_readers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    to = f"file://{tmp_path}/store/moved/savepoints/of-flink"
    report = imported(monkeypatch, "kafka-2", to, Totals(), kind=kind)
    (source,) = report.sources
    assert (source.uid, json.loads(source.end)) == ("orders", OFFSETS)
    assert report.notes == ("operator 'totals' starts empty",)
    assert report.location is not None
    store = open_store(f"file://{tmp_path}/store")
    manifest = read_manifest(store, report.location.removeprefix(f"{store.url}/"))
    assert manifest.batch_id == 0
    assert manifest.positions is not None
    positions = read_positions(store, manifest.positions)
    assert isinstance(positions, SourcePositions)
    assert positions.sources == ("orders",)
    (end,) = positions.batches[-1].ends
    expected = OFFSETS if kind == KAFKA else positions_at(OFFSETS).to_json()
    assert json.loads(end) == json.loads(json.dumps(expected))


def test_a_source_of_files_cannot_go_on_at_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportUnmappedError, match="source 'orders' reads FileSource, and Flink's source reads Kafka"):
        imported(monkeypatch, "kafka-2", None, Totals(), kind=FILES)
    left_out = imported(monkeypatch, "kafka-2", None, Totals(), kind=FILES, operators={"orders": None})
    assert left_out.sources == ()
    assert "source 'orders' begins where the program says" in left_out.notes


def test_only_the_importer_may_enter_a_new_folder_and_a_failed_import_leaves_no_object(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ImportCountsDifferError("a state has another number of entries")

    def files() -> list[Path]:
        return sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())

    imported(monkeypatch, "heap-1", f"file://{tmp_path}/store/moved/savepoints/of-flink", Totals())
    assert (tmp_path / "store" / "moved").stat().st_mode & 0o777 == 0o700
    complete = files()
    monkeypatch.setattr(NewSavepoint, "publish", refuse)
    with pytest.raises(ImportCountsDifferError):
        imported(monkeypatch, "heap-1", f"file://{tmp_path}/store/moved/savepoints/failed", Totals())
    assert files() == complete
