from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from keyscale.identifiers import BatchId
from keyscale.state.__main__ import main
from keyscale.state.inspection import dump as state_dump
from keyscale.state.inspection.checkpoint_reader import CheckpointReader, Entry, UnknownStateError
from keyscale.state.inspection.summary import summarize
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keys.key_groups import key_group_range
from keyscale.state.layout import location_of
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.opening import open_store
from keyscale.state.serializers.pickled import Pickled
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import (
    KEYS,
    KINDS,
    MAX_PARALLELISM,
    NAMESPACE,
    NOW_MS,
    PARALLELISM,
    SAVEPOINT,
    UID,
    VALUES,
    group_of,
    write_savepoint,
)
from tests.support.state.state_job import StateJob
from tests.support.state.state_job import group_of as key_group_of

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS_FILE = GOLDEN / "savepoint-v1"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("savepoint")
    store = open_store((folder / "store").as_uri())
    return location_of(store.url, write_savepoint(store, folder / "local").path)


@pytest.fixture(scope="module", params=["fresh", "golden"])
def location(request: pytest.FixtureRequest, fresh: str) -> str:
    return (
        fresh
        if request.param == "fresh"
        else f"{VECTORS_FILE.as_uri()}/every-kind/savepoints/{SAVEPOINT}/manifest.json"
    )


@pytest.fixture(scope="module")
def entries(location: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Entry]]:
    """The entries of each state, each in the key group of its key and the subtask of that."""
    reader = CheckpointReader.open(location, tmp_path_factory.mktemp("scratch"))
    operator = reader.operator(UID)
    found: dict[str, list[Entry]] = {name: [] for name in (*VALUES, *KINDS)}
    for subtask in reader.subtasks(operator):
        own = key_group_range(MAX_PARALLELISM, PARALLELISM, subtask.snapshot.subtask)
        for name, of_state in found.items():
            for entry in subtask.entries(reader.state(operator, name)):
                assert entry.key_group == group_of(entry.key)
                assert entry.key_group in own
                of_state.append(entry)
    return found


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_each_type_comes_back_for_every_key(entries: dict[str, list[Entry]], name: str) -> None:
    found = {entry.key: (entry.user_key, entry.value) for entry in entries[name]}
    assert found == dict.fromkeys(KEYS, (None, VALUES[name][1]))


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_state_comes_back_for_every_key(entries: dict[str, list[Entry]], name: str) -> None:
    found: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
    for entry in entries[name]:
        found.setdefault(entry.key, []).append((entry.user_key, entry.value))
        assert entry.namespace == (NAMESPACE if name == "in_window" else None)
        # Stamps are rounded, to less than any TTL needs.
        assert (abs(entry.stamp_ms - NOW_MS) <= 1000) if name == "with_ttl" else (entry.stamp_ms is None)
    assert found == dict.fromkeys(KEYS, KINDS[name])


def test_a_summary_counts_every_entry_once(location: str, tmp_path: Path) -> None:
    summary = summarize(CheckpointReader.open(location, tmp_path))
    (operator,) = summary.operators
    expected = {**dict.fromkeys(VALUES, 1), **{name: len(parts) for name, parts in KINDS.items()}}
    assert {state.name: state.entries for state in operator.states} == {
        name: count * len(KEYS) for name, count in expected.items()
    }
    assert operator.key_groups_with_state == len({group_of(key) for key in KEYS})
    sizes = [group.bytes for group in operator.largest_key_groups]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == sum(state.bytes for state in operator.states)
    assert [(part.key_group_start, part.key_group_end) for part in operator.subtasks] == [(0, 3), (4, 7)]


def test_scratch_files_are_removed_after_reading(fresh: str, tmp_path: Path) -> None:
    summarize(CheckpointReader.open(fresh, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_the_same_facts_as_a_table_and_as_json(
    fresh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--json", fresh]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["inspect", fresh]) == 0
    table = capsys.readouterr().out
    assert f"savepoint {SAVEPOINT} of job every-kind" in table
    for state in facts["operators"][0]["states"]:
        row = next(line for line in table.splitlines() if line.split()[:1] == [state["name"]])
        assert row.split()[-2:] == [f"{state['entries']:,}", f"{state['bytes']:,}"]


def test_a_dump_holds_typed_columns(fresh: str, tmp_path: Path) -> None:
    file = tmp_path / "map.parquet"
    assert main(["dump", "--operator", UID, "--state", "map", "--output", str(file), fresh]) == 0
    table = pq.read_table(file)
    assert table.column_names == ["subtask", "key_group", "key.name", "key.number", "user_key", "value"]
    rows = sorted((r["key.number"], r["key.name"], r["user_key"], r["value"]) for r in table.to_pylist())
    assert rows == sorted((number, name, dest, count) for name, number in KEYS for dest, count in KINDS["map"])


def test_a_dump_of_a_state_with_a_ttl_says_when_the_ttl_began(fresh: str, tmp_path: Path) -> None:
    file = tmp_path / "ttl.parquet"
    assert main(["dump", "--operator", UID, "--state", "with_ttl", "--output", str(file), fresh]) == 0
    stamps = pq.read_table(file)["stamp"].cast("int64").to_pylist()
    assert all(abs(stamp - NOW_MS) <= 1000 for stamp in stamps)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["dump", "--operator", "other", "--state", "map", "--output", "out"], "STATE_UNKNOWN"),
        (["dump", "--operator", UID, "--state", "other", "--output", "out"], "STATE_UNKNOWN"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_names(
    fresh: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert main([*arguments, fresh]) == 1
    error = capsys.readouterr().err
    assert error.startswith(code)
    assert UID in error


@pytest.mark.parametrize("location", ["file:///nowhere/job/chk-1/manifest.json", "nonsense", "file:///x/y"])
def test_a_wrong_location_is_refused_with_advice(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", location]) == 1
    code, advice = capsys.readouterr().err.split("\n", 1)
    assert code.split(":")[0].isupper()
    assert advice.strip()


def test_a_damaged_file_is_noticed_while_reading(fresh: str, tmp_path: Path) -> None:
    root = Path(fresh.removeprefix("file://")).parents[3]
    damaged = tmp_path / "store"
    shutil.copytree(root, damaged)
    victim = next(path for path in sorted(damaged.rglob("files/*")) if path.is_file())
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    location = f"{damaged.as_uri()}{fresh.removeprefix(root.as_uri())}"
    with pytest.raises(ObjectCorruptError):
        summarize(CheckpointReader.open(location, tmp_path / "scratch"))


def test_an_unknown_operator_is_named_in_the_error(fresh: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownStateError, match=UID):
        CheckpointReader.open(fresh, tmp_path).operator("other")


def test_pickles_are_counted_and_not_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    with job.open(0) as store:
        state = store.keyed.state(ValueStateDescriptor("any", Pickled()))
        store.keyed.set_current_key(key_group_of(1), (1,))
        state.update({1, 2})
        handle = store.finish_batch(BatchId(0), "unique")
    job.commit(BatchId(0), [handle])
    savepoint, _ = job.checkpoint("s")
    location = location_of(job.store.url, savepoint.path)
    assert main(["inspect", location]) == 0
    assert "pickle" in capsys.readouterr().out
    output = str(tmp_path / "out.parquet")
    assert main(["dump", "--operator", "count", "--state", "any", "--output", output, location]) == 1
    assert capsys.readouterr().err.startswith("STATE_PICKLE_NOT_ASKED_FOR")
    assert not list(tmp_path.glob("out.parquet*")), "a refused dump leaves no file"


def test_a_failed_dump_leaves_an_earlier_one_unchanged(
    fresh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "map.parquet"
    assert main(["dump", "--operator", UID, "--state", "map", "--output", str(file), fresh]) == 0
    before = file.read_bytes()

    def cut_short(*_: object) -> Iterator[object]:
        yield from ()
        raise ObjectCorruptError("a file is damaged")

    monkeypatch.setattr(state_dump, "dump_batches", cut_short)
    assert main(["dump", "--operator", UID, "--state", "map", "--output", str(file), fresh]) == 1
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["map.parquet"]
