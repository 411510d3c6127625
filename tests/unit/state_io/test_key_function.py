"""A function runs over the keys of a snapshot with the states and timers that it has in a job."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Ttl,
    ValueStateDescriptor,
)
from keyscale.identifiers import OperatorUid
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import read_manifest, write_manifest
from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.inspection.state_point import UnknownStateError
from keyscale.state.keys.key_groups import assign_to_key_group, subtask_for_key_group
from keyscale.state.layout import location_of, split_location
from keyscale.state.objects.opening import open_store
from keyscale.state_io import (
    EVENT_TIMERS,
    KeyFunction,
    NewOperator,
    NewState,
    NewTimers,
    StateReader,
    for_each_key,
    write,
)
from keyscale.state_io.difference import differences
from keyscale.state_io.verified_state import verify_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state_io import KeyContext

USERS = [f"user-{number}" for number in range(20)]
CLICKS = ValueStateDescriptor("clicks", pa.int64())
PAGES = MapStateDescriptor("pages", pa.string(), pa.int64(), Ttl(86_400_000))
MARKS = ListStateDescriptor("marks", pa.float64())
WINDOWS = ValueStateDescriptor("windows", pa.int64(), namespace_type=pa.int64())
STATES = [
    NewState(CLICKS, pa.table({"user": USERS, "value": list(range(20))})),
    NewState(
        PAGES,
        pa.table({"user": USERS, "value": pa.array([[("/", 1), ("/docs", 2)]] * 20, pa.map_("string", "int64"))}),
    ),
    NewState(MARKS, pa.table({"user": USERS[:2], "value": [[0.5, 1.5]] * 2})),
    NewState(WINDOWS, pa.table({"user": USERS[:1] * 2, "namespace": [10, 20], "value": [1, 2]})),
    NewTimers(EVENT_TIMERS, pa.table({"user": [*USERS[:1], "sleeper"], "time_ms": [100, 200]})),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('walked')}/store/job/savepoints"


@pytest.fixture(scope="module")
def source(store: str) -> str:
    operators = [
        NewOperator("counts", {"user": pa.string()}, STATES),
        NewOperator("others", {"id": pa.int64(), "day": pa.date32()}),
    ]
    return write(f"{store}/source", operators, max_parallelism=16, parallelism=3)


@pytest.fixture
def target(store: str) -> str:
    return f"{store}/{uuid.uuid4().hex}"


def rows(location: str, state: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    hidden = {"key", "key_group", "ttl_started_at"}
    with StateReader.open(location) as reader:
        for batch in reader.table("counts", state).batches():
            for row in batch.to_pylist():
                shown = {name: value for name, value in row.items() if name not in hidden}
                found.setdefault(row["key"]["user"], []).append(shown)
    return found


class Count(KeyedProcessFunction):
    """A job's own function."""

    def open(self, context: Any) -> None:
        self.clicks = context.get_state(CLICKS)
        self.errors = context.metrics.counter("errors", labels=["kind"])
        self.factor = context.worker_resource("factor", lambda: 2)

    def process_element(self, row: Any, context: Any) -> None:
        raise NotImplementedError


class Doubled(Count):
    def process_key(self, key: str, _: KeyContext) -> None:
        self.errors.labels(kind="none").inc()
        clicks = self.clicks.value()
        if clicks is None:
            assert key == "sleeper"
        elif clicks == 3:
            self.clicks.clear()
        else:
            self.clicks.update(self.factor * clicks)


def totals(key: str, context: KeyContext) -> Iterator[tuple[str, int | None, dict[str, int]]]:
    yield key, context.get_state(CLICKS).value(), dict(context.get_map_state(PAGES).items())


def test_results_come_key_by_key_also_for_keys_with_timers_alone(source: str) -> None:
    found = {key: rest for key, *rest in for_each_key(source, "counts", totals)}
    pages = {"/": 1, "/docs": 2}
    assert found == {"sleeper": [None, {}], **{user: [clicks, pages] for clicks, user in enumerate(USERS)}}


def test_a_jobs_own_function_changes_its_state_in_a_new_savepoint(source: str, target: str) -> None:
    assert isinstance(Doubled(), KeyFunction)
    location = for_each_key(source, "counts", Doubled(), to=target)
    assert location == f"{target}/manifest.json"
    expected = {user: [{"value": 2 * clicks}] for clicks, user in enumerate(USERS) if clicks != 3}
    assert rows(location, "clicks") == expected
    assert rows(location, "pages") == rows(source, "pages")
    assert verify_state(location).problems == []


def test_a_function_that_raises_leaves_no_object(source: str, target: str) -> None:
    def fail(key: str, _: KeyContext) -> None:
        if key == USERS[-1]:
            raise RuntimeError("no such user")

    with pytest.raises(RuntimeError, match="no such user"):
        for_each_key(source, "counts", fail, to=target)
    assert not Path(target.removeprefix("file://")).exists()


def test_every_kind_of_state_and_timers_can_change(source: str, target: str) -> None:
    def change(key: str, context: KeyContext) -> None:
        context.get_map_state(PAGES).remove("/")
        context.get_list_state(MARKS).add(9.0)
        windows = context.get_state(WINDOWS)
        if key == USERS[0]:
            windows.set_current_namespace(20)
            windows.update(22)
            context.timer_service().delete_event_time_timer(100)
        context.timer_service().register_event_time_timer(300)
        context.get_reducing_state(ReducingStateDescriptor("sum", pa.int64(), lambda one, other: one + other)).add(5)

    location = for_each_key(source, "counts", change, to=target)
    assert set(map(str, rows(location, "pages").values())) == {"[{'map_key': '/docs', 'value': 2}]"}
    marks = rows(location, "marks")
    assert [[row["value"] for row in marks[user]] for user in USERS[:3]] == [[0.5, 1.5, 9.0], [0.5, 1.5, 9.0], [9.0]]
    assert rows(location, "windows") == {USERS[0]: [{"namespace": 10, "value": 1}, {"namespace": 20, "value": 22}]}
    timers = rows(location, EVENT_TIMERS)
    assert (timers[USERS[0]], timers["sleeper"]) == ([{"time_ms": 300}], [{"time_ms": 200}, {"time_ms": 300}])
    assert rows(location, "sum") == {user: [{"value": 5}] for user in [*USERS, "sleeper"]}


def test_without_a_target_changes_are_seen_by_the_key_alone_and_dropped(source: str) -> None:
    def change(_: str, context: KeyContext) -> Iterator[int | None]:
        clicks = context.get_state(CLICKS)
        clicks.update(-1)
        yield clicks.value()

    before = rows(source, "clicks")
    assert set(for_each_key(source, "counts", change)) == {-1}
    assert rows(source, "clicks") == before
    assert all(clicks != -1 for _, clicks, _ in for_each_key(source, "counts", totals))


def test_an_expired_entry_is_away_as_in_the_job(store: str) -> None:
    stamps = pa.array([0, 4_000_000_000_000], pa.timestamp("ms", "UTC"))
    short = ValueStateDescriptor("clicks", pa.int64(), Ttl(1000))
    old = NewState(short, pa.table({"user": ["ada", "bob"], "value": [1, 2], "ttl_started_at": stamps}))
    location = write(f"{store}/old", [NewOperator("counts", {"user": pa.string()}, [old])])
    found = for_each_key(location, "counts", lambda key, context: [(key, context.get_state(short).value())])
    assert dict(found) == {"ada": None, "bob": 2}


def test_a_function_has_the_facts_and_the_times_of_the_snapshot_and_opens_once_per_subtask(source: str) -> None:
    root, path = split_location(source)
    objects = open_store(root)
    time = JobTime({OperatorUid("counts"): EventTime(9_000, 7_000), OperatorUid("others"): EventTime(9, 8)}, 1, 6_000)
    timed = msgspec.structs.replace(read_manifest(objects, path), savepoint_id="timed", time=time, created_at_ms=5_000)
    write_manifest(objects, timed)
    opened: list[int] = []

    class Facts(KeyedProcessFunction):
        def open(self, context: Any) -> None:
            opened.append(context.subtask_index)

        def process_element(self, row: Any, context: Any) -> None:
            raise NotImplementedError

        def process_key(self, key: str, context: KeyContext) -> list[tuple[Any, ...]]:
            timers = context.timer_service()
            group = assign_to_key_group((key,), context.max_parallelism)
            assert context.subtask_index == subtask_for_key_group(group, 16, 3)
            return [
                (
                    context.operator_uid,
                    context.parallelism,
                    context.max_parallelism,
                    timers.current_processing_time(),
                    timers.current_watermark(),
                )
            ]

    found = list(for_each_key(location_of(root, timed.path), "counts", Facts()))
    assert found == [("counts", 3, 16, 5_000, 7_000)] * 21
    assert opened == [0, 1, 2]


def test_many_changes_are_applied_a_part_at_a_time(source: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyscale.state_io.key_function._PENDING_MAX", 1)
    location = for_each_key(source, "counts", Doubled(), to=target)
    with StateReader.open(source) as before, StateReader.open(location) as after:
        kinds = [change.kind for each in differences(before, after, "counts") for change in each.changes()]
    assert Counter(kinds) == {"changed": 18, "removed": 1}  # the first user has 0 clicks


def test_keys_of_several_columns_are_tuples_and_an_operator_without_keys_has_no_results(source: str) -> None:
    assert list(for_each_key(source, "others", lambda key, _: [key])) == []


@pytest.mark.parametrize(
    ("operator", "descriptor", "error"),
    [
        ("nothing", CLICKS, UnknownStateError),
        ("counts", ValueStateDescriptor("clicks", pa.string()), StateSchemaMismatchError),
    ],
)
def test_an_operator_or_a_descriptor_that_does_not_fit_is_refused_and_writes_nothing(
    source: str, target: str, tmp_path: Path, *, operator: str, descriptor: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        for_each_key(source, operator, lambda _, context: context.get_state(descriptor), to=target, scratch=tmp_path)
    with pytest.raises(error):
        list(for_each_key(source, operator, lambda _, context: context.get_state(descriptor), scratch=tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Exception, match="manifest"):
        StateReader.open(target)
