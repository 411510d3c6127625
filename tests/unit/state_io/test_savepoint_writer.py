"""Savepoints from rows: what they hold, what is refused, and a job that starts from one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.state.errors import DescriptorError, KeyGroupError, KeyTooLargeError, StateSchemaMismatchError
from keyscale.state.keyed.batch_clock import TimeDomain
from keyscale.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.stamp import STAMP_MAX_MS, STAMP_MIN_MS
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.layout import LocationError
from keyscale.state.objects.errors import ObjectNotFoundError
from keyscale.state.serializers.pickled import Pickled
from keyscale.state.writing.new_savepoint import NewSavepoint, SavepointExistsError
from keyscale.state.writing.row_encoder import RowsInvalidError
from keyscale.state_io import (
    EVENT_TIMERS,
    NewOperator,
    NewState,
    NewTimers,
    StateReader,
    savepoint_writer,
    spark_writer,
    write,
)
from keyscale.state_io.difference import differences
from keyscale.state_io.verified_state import verify_state
from tests.support.examples.page_views import ids_by_page
from tests.support.rehearsal.page_views_rehearsal import FILES, page_views_rehearsal
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import DESCRIPTORS, KEY_SCHEMA, NAMESPACE, SAVEPOINT, UID

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keyscale.state.keyed.descriptors import StateDescriptor

KEY = {"user": pa.string()}
CLICKS = ValueStateDescriptor("clicks", pa.int64())
TABLE = pa.table({"user": ["ada", "bob"], "value": [3, 5]})
EVERY_KIND = f"{(GOLDEN / 'savepoint-v1').as_uri()}/every-kind/savepoints/{SAVEPOINT}"


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/history/savepoints/first"


def written(place: str, descriptor: StateDescriptor[Any], rows: Any) -> list[dict[str, Any]]:
    """Writes a state, and returns its rows as they are read back."""
    location = write(place, [NewOperator("counts", KEY, [NewState(descriptor, rows)])])
    with StateReader.open(location) as reader:
        return reader.table("counts", descriptor.name).reader().read_all().drop_columns("key_group").to_pylist()


def test_every_kind_and_type_of_an_old_savepoint_is_written_again_as_it_was(place: str) -> None:
    with StateReader.open(EVERY_KIND, shards_open=8) as golden:
        states = [NewState(each, golden.table(UID, each.name)) for each in DESCRIPTORS]
        location = write(place, [NewOperator(UID, KEY_SCHEMA, states)], max_parallelism=8, parallelism=2)
        assert verify_state(location).problems == []
        with StateReader.open(location, shards_open=8) as reader:
            declarations = [each.point.operator(UID).declaration for each in (reader, golden)]
            assert len({each.key_schema for each in declarations if each is not None}) == 1
            rows = reader.table(UID, "in_window").reader().read_all().to_pylist()
            assert {row["namespace"] for row in rows} == {NAMESPACE}
            for difference in differences(golden, reader, UID):
                assert list(difference.changes()) == []


def test_whole_maps_and_lists_are_written_as_entries(place: str) -> None:
    rows = pa.table(
        {"user": ["ada", "bob"], "value": pa.array([[("a", 1), ("b", None)], []], pa.map_("string", "int64"))}
    )
    assert written(place, MapStateDescriptor("pages", pa.string(), pa.int64()), rows) == [
        {"key": {"user": "ada"}, "map_key": "a", "value": 1},
        {"key": {"user": "ada"}, "map_key": "b", "value": None},
    ]
    lists = pa.table({"user": ["ada", "bob", "eve"], "value": [[1.5, 2.5], None, [3.5]]})
    found = written(f"{place}-lists", ListStateDescriptor("marks", pa.float64()), lists.slice(0, 2))
    assert [(row["list_index"], row["value"]) for row in found] == [(0, 1.5), (1, 2.5)]
    offsets, elements = pa.array([0, 2, 3], pa.int32()), pa.array([1.5, 2.5, 3.5])
    masked = pa.ListArray.from_arrays(offsets, elements, mask=pa.array([True, False]))
    rows = pa.table({"user": ["ada", "bob"], "value": masked})
    found = written(f"{place}-masked", ListStateDescriptor("marks", pa.float64()), rows)
    assert [(row["key"], row["value"]) for row in found] == [({"user": "bob"}, 3.5)], "a null has no elements"


def test_values_convert_to_the_declared_type_only_without_loss(place: str) -> None:
    narrow = TABLE.set_column(1, "value", TABLE["value"].cast(pa.int8()))
    assert [row["value"] for row in written(place, CLICKS, narrow)] == [3, 5]
    with pytest.raises(RowsInvalidError, match="'value' does not fit"):
        written(f"{place}-text", CLICKS, TABLE.set_column(1, "value", TABLE["user"]))


def test_pickled_objects_are_given_as_bytes(place: str) -> None:
    rows = pa.table({"user": ["ada"], "value": [b"bytes of a pickle"]})
    assert written(place, ValueStateDescriptor("model", Pickled()), rows)[0]["value"] == b"bytes of a pickle"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (TABLE.rename_columns(["name", "value"]), "unknown columns name"),
        (TABLE.drop_columns("user"), "lack the column 'user'"),
        (TABLE.drop_columns("value"), "lack the column 'value'"),
        (TABLE.append_column("map_key", TABLE["user"]), "unknown columns map_key"),
        (pa.table({"user": ["ada"], "value": pa.array([None], pa.int64())}), "has no value"),
        (pa.concat_tables([TABLE, TABLE.slice(1)]), "1 rows have the key of another row"),
        (pa.table({"key": pa.array([{"user": "ada"}, None]), "value": [1, 2]}), "a row has no key"),
    ],
)
def test_rows_that_do_not_fit_are_refused(place: str, rows: pa.Table, complaint: str) -> None:
    with pytest.raises(RowsInvalidError, match=complaint):
        written(place, CLICKS, rows)
    with pytest.raises(ObjectNotFoundError):  # nothing was published
        StateReader.open(place)


@pytest.mark.parametrize(
    ("descriptor", "words"),
    [
        (
            MapStateDescriptor("pages", pa.string(), pa.int64()),
            "lack the column 'map_key', or a `value` that is a whole map",
        ),
        (ListStateDescriptor("marks", pa.int64()), "lack the column 'list_index', or a `value` that is a whole list"),
    ],
)
def test_a_value_that_is_no_whole_map_or_list_is_no_entry(
    place: str, descriptor: StateDescriptor[Any], words: str
) -> None:
    with pytest.raises(RowsInvalidError, match=words):
        written(place, descriptor, TABLE)


def test_times_of_a_ttl_may_have_any_unit_and_are_stored_in_milliseconds(place: str) -> None:
    descriptor = ValueStateDescriptor("clicks", pa.int64(), Ttl(1000))
    found = {}
    for unit, number in (("s", 1_700_000_000), ("us", 1_700_000_000_123_456)):
        times = pa.array([number, number + 1], pa.timestamp(unit, "UTC"))
        rows = written(f"{place}-{unit}", descriptor, TABLE.append_column("ttl_started_at", times))
        found[unit] = [int(row["ttl_started_at"].timestamp() * 1000) for row in rows]
    assert found == {
        "s": [1_700_000_000_000, 1_700_000_001_000],
        "us": [1_700_000_000_123, 1_700_000_000_123],
    }


@pytest.mark.parametrize("index", [None, -1])
def test_a_list_index_is_the_place_of_an_element(place: str, index: int | None) -> None:
    rows = pa.table({"user": ["ada"], "list_index": pa.array([index], pa.int64()), "value": [1]})
    with pytest.raises(RowsInvalidError, match="from 0"):
        written(place, ListStateDescriptor("marks", pa.int64()), rows)


def test_a_timer_has_a_time(place: str) -> None:
    rows = pa.table({"user": ["ada"], "time_ms": pa.array([None], pa.int64())})
    with pytest.raises(RowsInvalidError, match="no time_ms"):
        write(place, [NewOperator("counts", KEY, [NewTimers(EVENT_TIMERS, rows)])])


def test_rows_without_a_time_get_the_present_only_in_processing_time(place: str) -> None:
    (row, _) = written(place, ValueStateDescriptor("clicks", pa.int64(), Ttl(1000)), TABLE)
    assert row["ttl_started_at"].year >= 2026
    in_event_time = Ttl(1000, time_domain=TimeDomain.EVENT)
    with pytest.raises(RowsInvalidError, match="event time"):
        written(f"{place}-event", ValueStateDescriptor("clicks", pa.int64(), in_event_time), TABLE)


@pytest.mark.parametrize("beyond_ms", [STAMP_MIN_MS - 1, STAMP_MAX_MS + 1, 2**62])
def test_a_time_that_a_stamp_cannot_hold_is_refused(place: str, beyond_ms: int) -> None:
    descriptor = ValueStateDescriptor("clicks", pa.int64(), Ttl(1000))
    rows = TABLE.append_column("ttl_started_at", pa.array([STAMP_MAX_MS, None], pa.timestamp("ms", "UTC")))
    assert len(written(place, descriptor, rows)) == 2
    rows = rows.set_column(2, "ttl_started_at", pa.array([0, beyond_ms], pa.timestamp("ms", "UTC")))
    with pytest.raises(RowsInvalidError, match=f"ttl_started_at is {beyond_ms:,} ms"):
        written(f"{place}-beyond", descriptor, rows)


def test_a_key_that_is_too_large_is_refused(place: str) -> None:
    with pytest.raises(KeyTooLargeError):
        written(place, CLICKS, pa.table({"user": ["x" * 70_000], "value": [1]}))


def test_a_savepoint_is_never_overwritten(place: str) -> None:
    written(place, CLICKS, TABLE)
    with pytest.raises(SavepointExistsError):
        written(place, CLICKS, TABLE)


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o700), (0o711, 0o711)])
def test_only_the_writer_may_enter_a_new_folder_of_a_store(
    place: str, tmp_path: Path, mode: int | None, expected: int
) -> None:
    folder = tmp_path / "store" / "history"
    if mode is not None:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    write(place, [NewOperator("counts", KEY, [NewState(CLICKS, TABLE)])])
    assert folder.stat().st_mode & 0o777 == expected


def test_a_failed_write_leaves_no_object_of_its_own(place: str, tmp_path: Path) -> None:
    earlier = tmp_path / "store" / "history" / "savepoints" / "first" / "earlier"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    fits, unfit = (NewState(CLICKS, pa.table({"user": ["ada"] * rows, "value": [1] * rows})) for rows in (1, 2))
    with pytest.raises(RowsInvalidError):
        write(place, [NewOperator("counts", KEY, [fits]), NewOperator("others", KEY, [unfit])])
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == [earlier]


def test_a_savepoint_whose_files_another_write_has_removed_is_not_published(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = NewSavepoint.publish

    def publish(savepoint: NewSavepoint, *arguments: Any, **options: Any) -> Any:
        store = savepoint.store()
        store.delete([info.path for info in store.list("")])
        return finish(savepoint, *arguments, **options)

    monkeypatch.setattr(NewSavepoint, "publish", publish)
    with pytest.raises(ObjectNotFoundError, match="another write to file://"):
        write(place, [NewOperator("counts", KEY, [NewState(CLICKS, TABLE)])])


@pytest.mark.parametrize("place", ["file:///tmp/store/job/chk-1", "nowhere", "file:///tmp/store/job"])
def test_a_place_that_is_not_a_savepoints_is_refused(place: str) -> None:
    with pytest.raises(LocationError):
        write(place, [])


def test_timers_cannot_have_the_name_of_every_store_s_own_family(place: str) -> None:
    with pytest.raises(DescriptorError, match="'default' cannot name"):
        write(place, [NewOperator("counts", KEY, [NewTimers("default", pa.table({"user": [], "time_ms": []}))])])


@pytest.mark.parametrize(("max_parallelism", "parallelism"), [(0, 1), (32_769, 1), (4, 5), (4, 0)])
def test_a_parallelism_out_of_bounds_is_refused(place: str, max_parallelism: int, parallelism: int) -> None:
    states = [NewState(CLICKS, TABLE)]
    with pytest.raises(KeyGroupError):
        write(place, [NewOperator("counts", KEY, states)], max_parallelism=max_parallelism, parallelism=parallelism)


def test_a_parallelism_of_zero_is_refused_before_spark_runs(place: str) -> None:
    with pytest.raises(KeyGroupError):
        spark_writer.write(
            cast("SparkSession", None), place, [NewOperator("counts", KEY, [NewState(CLICKS, TABLE)])], parallelism=0
        )


def test_a_savepoint_has_the_key_groups_the_hash_and_the_parts_that_are_asked_for(place: str) -> None:
    operators = [NewOperator("counts", KEY, [NewState(CLICKS, TABLE)])]
    location = write(place, operators, max_parallelism=8, parallelism=2, hash_id="java")
    assert verify_state(location).problems == [], "each key is in its key group by this hash"
    with StateReader.open(location) as reader:
        assert reader.point.manifest is not None
        assert (reader.point.max_parallelism, reader.point.hash_id) == (8, "java")
        assert [each.parallelism for each in reader.point.manifest.operators] == [2]


@pytest.mark.parametrize("operators", [["a", "a"], ["a"]])
def test_operators_and_states_are_declared_once(place: str, operators: list[str]) -> None:
    states = [NewState(CLICKS, TABLE)] * (2 if len(operators) == 1 else 1)
    with pytest.raises(StateSchemaMismatchError, match="written twice"):
        write(place, [NewOperator(uid, KEY, states) for uid in operators])


def test_spilled_entries_are_written_as_the_entries_in_memory(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"user": [f"user {number * 7919 % 3000}" for number in range(3000)], "value": list(range(3000))})
    in_memory = written(place, CLICKS, rows)
    monkeypatch.setattr(savepoint_writer, "MEMORY_BYTES", 20_000)
    batches = rows.to_batches(max_chunksize=100)
    assert written(f"{place}-spilled", CLICKS, batches) == in_memory
    with pytest.raises(RowsInvalidError, match="1 rows have the key"):
        written(f"{place}-twice", CLICKS, [*batches, rows.slice(5, 1)])


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_a_job_that_starts_from_totals_of_its_history_goes_on_as_an_undisturbed_job(
    tmp_path: Path, parallelism: int
) -> None:
    undisturbed = page_views_rehearsal(tmp_path / "undisturbed")
    undisturbed.start(2)
    undisturbed.drain()
    expected = undisturbed.checkpoint("end")

    history, later = FILES[:5], FILES[5:]
    pages = ids_by_page(history)
    ids = [{"page": page, "map_key": each, "value": True} for page, found in pages.items() for each in found]
    totals = [{"page": page, "value": len(found)} for page, found in pages.items()]
    location = write(
        f"file://{tmp_path}/job/store/history/savepoints/totals",
        [
            NewOperator(
                "views",
                {"page": pa.string()},
                [
                    NewState(MapStateDescriptor("view_ids", pa.string(), pa.bool_()), pa.Table.from_pylist(ids)),
                    NewState(ValueStateDescriptor("views", pa.int64()), pa.Table.from_pylist(totals)),
                ],
            )
        ],
        max_parallelism=16,
        parallelism=2,
    )
    job = page_views_rehearsal(tmp_path / "job", files=later)
    job.start(parallelism, location)
    job.drain()
    with StateReader.open(expected) as before, StateReader.open(job.checkpoint("end")) as after:
        for difference in differences(before, after):
            assert list(difference.changes()) == []
    emitted, later_of_undisturbed = job.output("files"), undisturbed.output("files")[sum(map(len, pages.values())) :]
    assert sorted(map(repr, emitted)) == sorted(map(repr, later_of_undisturbed))
    assert emitted


def test_ttl_times_that_arrow_cannot_convert_are_refused(tmp_path: Path) -> None:
    started = pa.array([2**62], pa.timestamp("s", "UTC"))
    rows = pa.table({"user": ["ada"], "value": [1], "ttl_started_at": started})
    state = NewState(ValueStateDescriptor("clicks", pa.int64(), Ttl(1000)), rows)
    with pytest.raises(RowsInvalidError, match="'ttl_started_at' does not fit"):
        write(f"file://{tmp_path}/store/job/savepoints/late", [NewOperator("o", {"user": pa.string()}, [state])])
