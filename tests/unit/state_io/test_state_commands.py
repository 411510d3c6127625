"""The commands `keyscale state`, which need no control plane."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from keyscale import state_io
from keyscale.api.cli.root import main
from keyscale.api.cli.state import _json
from keyscale.identifiers import Attempt, BatchId, OperatorUid
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import read_manifest, write_manifest
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.layout import location_of, split_location
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.opening import open_store
from keyscale.state.serializers.pickled import Pickled
from keyscale.state_io import ChangedKey, ChangedOperator, KeyChange, KeyedStateTable, NewOperator, NewState, write
from tests.support.repository import GOLDEN
from tests.support.state.every_kind import KEYS, KINDS, SAVEPOINT, UID, VALUES, group_of
from tests.support.state.state_job import StateJob
from tests.support.state.state_job import group_of as key_group_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCATION = f"{(GOLDEN / 'savepoint-v1').as_uri()}/every-kind/savepoints/{SAVEPOINT}/manifest.json"


def test_show_has_the_facts_of_the_manifest_and_counts_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "show", "--json", "--entries", LOCATION]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["job_id"], facts["savepoint_id"], facts["max_parallelism"]) == ("every-kind", SAVEPOINT, 8)
    (operator,) = facts["operators"]
    assert [(each["key_group_start"], each["key_group_end"]) for each in operator["subtasks"]] == [(0, 3), (4, 7)]
    expected = {**dict.fromkeys(VALUES, 1), **{name: len(parts) for name, parts in KINDS.items()}}
    counts = facts["counts"]
    assert {each["state"]: each["entries"] for each in counts["states"]} == {
        name: count * len(KEYS) for name, count in expected.items()
    }
    sizes = [each["size_bytes"] for each in counts["largest_key_groups"]]
    assert len(sizes) == len({group_of(key) for key in KEYS})
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == sum(each["size_bytes"] for each in counts["states"])


def test_tables_lists_each_state_with_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "tables", LOCATION]) == 0
    lines = capsys.readouterr().out.splitlines()
    (of_map,) = [line for line in lines if line.split()[:3] == [UID, "map", "map"]]
    assert "key struct<name: string, number: int32>, map_key string, value int64, key_group int32" in of_map
    assert "timestamp[us, tz=UTC]" in "\n".join(lines)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_dump_writes_all_rows(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"map.{suffix}"
    assert main(["state", "dump", "--operator", UID, "--state", "map", "--output", str(file), LOCATION]) == 0
    if suffix == "parquet":
        found = [(row["key"]["number"], row["map_key"], row["value"]) for row in parquet.read_table(file).to_pylist()]
        assert sorted(found) == sorted((number, name, count) for _, number in KEYS for name, count in KINDS["map"])
    else:
        lines = file.read_text().splitlines()
        assert len(lines) == len(KEYS) * 2 + (suffix == "csv")
        assert suffix == "csv" or json.loads(lines[0])["key"] == {"name": "a\0b", "number": 5}


def test_a_failed_dump_leaves_an_earlier_one_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "map.parquet"
    command = ["state", "dump", "--operator", UID, "--state", "map", "--output", str(file), LOCATION]
    assert main(command) == 0
    before = file.read_bytes()

    def cut_short(*_: object) -> Iterator[object]:
        yield from ()
        raise ObjectCorruptError("a file is damaged")

    monkeypatch.setattr(KeyedStateTable, "batches", cut_short)
    assert main(command) == 1
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["map.parquet"]


def test_pickles_are_dumped_as_bytes(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    with job.open(0) as store:
        state = store.keyed.state(ValueStateDescriptor("any", Pickled()))
        store.keyed.set_current_key(key_group_of(1), (1,))
        state.update({1, 2})
        handle = store.finish_batch(BatchId(0), "unique")
    job.commit(BatchId(0), [handle])
    location = location_of(job.store.url, job.checkpoint("s")[0].path)
    file = tmp_path / "any.parquet"
    assert main(["state", "dump", "--operator", "count", "--state", "any", "--output", str(file), location]) == 0
    assert isinstance(parquet.read_table(file)["value"][0].as_py(), bytes)


def test_diff_shows_changes_and_says_so_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1})
    before = location_of(job.store.url, job.checkpoint()[0].path)
    job.run_batch({1: 1, 2: 2})
    after = location_of(job.store.url, job.checkpoint()[0].path)
    assert main(["state", "diff", "--json", before, after]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["states"] == [{"operator": "count", "state": "count", "added": 1, "removed": 0, "changed": 1}]
    assert {(each["row"]["key"]["id"], each["before"], each["after"]) for each in found["changes"]} == {
        (1, 1, 2),
        (2, None, 2),
    }
    assert main(["state", "diff", before, before]) == 0


def test_verify_fails_for_a_damaged_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1})
    location = location_of(job.store.url, job.checkpoint()[0].path)
    assert main(["state", "verify", location]) == 0
    next((tmp_path / "store").rglob("shared/*")).unlink()
    assert main(["state", "verify", location]) == 1
    assert "CLI_STATE_DAMAGED" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nonsense"], "STATE_LOCATION_INVALID"),
        (["show", "file:///nowhere/job/chk-1/manifest.json"], "STATE_OBJECT_NOT_FOUND"),
        (["dump", LOCATION, "--operator", "x", "--state", "map", "--output", "o.csv"], "STATE_UNKNOWN"),
        (["dump", LOCATION, "--operator", UID, "--state", "x", "--output", "o.csv"], "STATE_UNKNOWN"),
        (["dump", LOCATION, "--operator", UID, "--state", "map", "--output", "o.txt"], "CLI_INVALID_ARGUMENT"),
        (["sql", LOCATION, "selec 1"], "STATE_SQL_INVALID"),
    ],
)
def test_wrong_input_is_refused_with_advice(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert main(["state", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error {code}: ")
    assert error.splitlines()[-1].startswith("  ")


@pytest.fixture
def written(tmp_path: Path) -> str:
    """The location of a savepoint with the state `clicks` of the operator `counts`."""
    clicks = NewState(ValueStateDescriptor("clicks", pa.int64()), pa.table({"user": ["ada", "bob"], "value": [1, 2]}))
    place = f"file://{tmp_path}/store/job/savepoints/written"
    return write(place, [NewOperator("counts", {"user": pa.string()}, [clicks])], max_parallelism=4)


def test_show_prints_each_fact_at_its_name(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    root, path = split_location(written)
    store = open_store(root)
    manifest = read_manifest(store, path)
    time = JobTime({OperatorUid("counts"): EventTime(5_000, 3_000)}, processing_ms=9_000)
    write_manifest(store, msgspec.structs.replace(manifest, time=time, savepoint_id="timed", attempt=Attempt(4)))
    timed = written.replace("/written/", "/timed/")
    assert main(["state", "show", "--json", timed]) == 0
    (operator,) = manifest.operators
    (subtask,) = operator.subtasks
    columns = [("key", "struct<user: string>"), ("value", "int64"), ("key_group", "int32")]
    facts = json.loads(capsys.readouterr().out)
    assert facts == {
        "job_id": "job",
        "checkpoint_id": manifest.checkpoint_id,
        "savepoint_id": "timed",
        "kind": "savepoint",
        "attempt": 4,
        "created_at_ms": manifest.created_at_ms,
        "state_size_bytes": manifest.state_size_bytes,
        "batch_id": manifest.batch_id,
        "max_parallelism": 4,
        "hash_id": "spark",
        "processing_time_ms": 9_000,
        "source_positions": {},
        "operators": [
            {
                "uid": "counts",
                "key": [{"name": "user", "type": "string"}],
                "watermark_ms": 3_000,
                "subtasks": [
                    {
                        "subtask": 0,
                        "key_group_start": 0,
                        "key_group_end": 3,
                        "shards": 1,
                        "files": len(subtask.distinct_files),
                        "state_size_bytes": subtask.state_size_bytes,
                    }
                ],
                "tables": [
                    {
                        "operator": "counts",
                        "state": "clicks",
                        "kind": "value",
                        "columns": [{"name": name, "type": kind} for name, kind in columns],
                    }
                ],
            }
        ],
    }
    assert len(subtask.distinct_files) > 1
    assert main(["state", "show", "--entries", timed]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "processing_time_ms 1970-01-01 00:00:09.000" in lines
    assert "counts clicks value key struct<user: string>, value int64, key_group int32" in lines
    (of_subtask,) = [line for line in lines if line.startswith("counts 0 0 3 1 ")]
    assert of_subtask.split()[5] == str(len(subtask.distinct_files))
    assert [line.split()[:3] for line in lines if line.startswith("counts clicks 2 ")] == [["counts", "clicks", "2"]]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("7", 7),
        ('"7"', "7"),
        ("ada", "ada"),
        ("[1, null]", [1, None]),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        (None, None),
    ],
)
def test_a_value_is_json_or_else_the_text_itself(value: str | None, read: object) -> None:
    assert _json(value) == read


def shown(location: str, table: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    statement = f"select key.user, value from {table} order by all"  # noqa: S608 - the test's own table
    assert main(["state", "sql", location, statement, "--format", "csv"]) == 0
    return capsys.readouterr().out.splitlines()[1:]


def test_set_and_delete_write_a_savepoint_beside(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = written.replace("/written/manifest.json", "")
    key = ["--operator", "counts", "--state", "clicks", "--key", "ada"]
    assert main(["state", "set", "--json", written, *key, "--value", "40", "--to", f"{place}/set"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["before"], answer["after"]) == ([{"value": 1}], [{"value": 40}])
    assert shown(answer["location"], "counts.clicks", capsys) == ["ada,40", "bob,2"]
    assert main(["state", "delete", answer["location"], *key, "--to", f"{place}/deleted"]) == 0
    assert shown(f"{place}/deleted", "counts.clicks", capsys) == ["bob,2"]


def test_lines_change_several_keys_in_one_savepoint(
    written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"operator": "counts", "state": "clicks"}
    lines = tmp_path / "changes.jsonl"
    changes = [{**place, "key": "ada", "value": 40}, {**place, "key": "bob", "delete": True}]
    lines.write_text("".join(f"{json.dumps(each)}\n" for each in changes))
    target = written.replace("/written/manifest.json", "/several")
    assert main(["state", "set", "--json", written, "--lines", str(lines), "--to", target]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["key"]["user"], each["after"]) for each in answer["changes"]] == [
        ("ada", [{"value": 40}]),
        ("bob", []),
    ]
    assert shown(target, "counts.clicks", capsys) == ["ada,40"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("no json", "line 2 is not JSON"),
        ('{"operator": "counts", "state": "clicks", "key": "ada", "value": NaN}', "line 2 is not JSON"),
        ('{"operator": "counts", "state": "clicks", "key": "ada", "value": 1e400}', "line 2 is not JSON"),
        ('{"operator": "counts"}', "line 2"),
        ('{"operator": "counts", "state": "clicks", "key": "bob", "value": "text"}', "change 2: "),
    ],
)
def test_a_line_that_does_not_fit_is_named(
    written: str, line: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "changes.jsonl"
    lines.write_text('{"operator": "counts", "state": "clicks", "key": "ada", "value": 1}\n' + line)
    target = written.replace("/written/manifest.json", "/refused")
    assert main(["state", "set", written, "--lines", str(lines), "--to", target]) != 0
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "key", "complaint"),
    [(10_001, "ada", "10,001 changes, and one request takes at most 10,000"), (6_000, "a" * 200, "at most 1.0 MiB")],
)
def test_lines_beyond_one_request_are_to_be_split(
    changes: int, key: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "changes.jsonl"
    lines.write_text(f'{{"operator": "o", "state": "s", "key": "{key}", "value": 1}}\n' * changes)
    assert main(["state", "set", "job", "--lines", str(lines)]) != 0
    error = capsys.readouterr().err
    assert complaint in error
    assert "Split the changes" in error


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "give --value"),
        (["--value", "1", "--time-ms", "1"], "give --value"),
        (["--value", "1"], "needs --to"),
        (["--value", "1", "--to", "x", "--id", "y"], "needs --to"),
        (["--value", "text", "--to", "file:///tmp/store/job/savepoints/x"], "STATE_JSON_INVALID"),
    ],
)
def test_set_says_what_is_missing(
    written: str, options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--operator", "counts", "--state", "clicks", "--key", "ada", *options]
    assert main(["state", "set", written, *arguments]) != 0
    assert complaint in capsys.readouterr().err


def test_transform_renames_and_drops(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = written.replace("/written/manifest.json", "/changed")
    renamed = ["--rename-operator", "counts", "totals", "--rename-state", "counts", "clicks", "views"]
    assert main(["state", "transform", written, target, *renamed, "--max-parallelism", "128"]) == 0
    assert shown(target, "totals.views", capsys) == ["ada,1", "bob,2"]
    assert main(["state", "transform", target, f"{target}-2", "--drop-state", "totals", "views"]) == 0
    capsys.readouterr()
    assert main(["state", "tables", f"{target}-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["state", "transform", target, f"{target}-3", "--drop-operator", "counts"]) == 1
    assert "STATE_UNKNOWN" in capsys.readouterr().err


def test_diff_counts_every_change_and_shows_as_many_as_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1, 2: 2, 3: 3})
    before = location_of(job.store.url, job.checkpoint()[0].path)
    job.run_batch({1: 1, 2: 2, 3: 3, 4: 4})
    after = location_of(job.store.url, job.checkpoint()[0].path)
    assert main(["state", "diff", "--json", "--changes", "2", before, after]) == 4
    found = json.loads(capsys.readouterr().out)
    assert (len(found["changes"]), found["total"]) == (2, 4)
    assert found["states"] == [{"operator": "count", "state": "count", "added": 1, "removed": 0, "changed": 3}]
    assert main(["state", "diff", "--json", "--changes", "0", after, before]) == 4
    assert json.loads(capsys.readouterr().out) == {
        "states": [{"operator": "count", "state": "count", "added": 0, "removed": 1, "changed": 3}],
        "changes": [],
        "total": 4,
    }
    assert main(["state", "diff", "--changes", "1", before, after]) == 4
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown[:2] == ["OPERATOR STATE ADDED REMOVED CHANGED", "count count 1 0 3"]
    assert shown[-1] == "3 more; --changes shows more"
    assert len(shown) == 6


def test_transform_gets_each_option_for_its_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(state_io, "transform", lambda *of, **more: asked.append((*of, more)) or "file:///written")
    options = ["--rename-operator", "a", "b", "--rename-state", "a", "x", "y", "--drop-state", "a", "z"]
    options += ["--drop-state", "c", "w", "--drop-operator", "d", "--max-parallelism", "64", "--hash", "java"]
    assert main(["state", "transform", "LOCATION", "TARGET", *options, "--scratch", str(tmp_path), "--json"]) == 0
    changed = {
        "a": ChangedOperator("b", {"x": "y", "z": None}),
        "c": ChangedOperator(None, {"w": None}),
        "d": None,
    }
    more = {"max_parallelism": 64, "hash_id": "java", "scratch": tmp_path}
    assert asked == [("LOCATION", "TARGET", changed, more)]
    assert json.loads(capsys.readouterr().out) == {"location": "file:///written"}


def test_a_savepoint_is_changed_with_each_option_in_its_own_field(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    effect = ChangedKey({"user": "ada"}, [{"value": 1}], [{"value": 2}])

    def change_keys(*given: Any, **more: Any) -> Any:
        asked.append((*given, more))
        return SimpleNamespace(location="file:///changed", changes=[effect])

    monkeypatch.setattr(state_io, "change_keys", change_keys)
    options = ["--operator", "count", "--state", "clicks", "--key", "ada", "--namespace", "7", "--map-key", "home"]
    to = ["--to", "TARGET", "--scratch", str(tmp_path), "--json"]
    assert main(["state", "set", "file:///s", *options, "--value", "[2]", *to]) == 0
    assert json.loads(capsys.readouterr().out) == {"location": "file:///changed", **asdict(effect)}
    assert main(["state", "delete", "file:///s", *options, "--time-ms", "60", *to]) == 0
    place = {"operator": "count", "state": "clicks", "key": "ada", "namespace": 7, "map_key": "home"}
    assert asked == [
        ("file:///s", "TARGET", [KeyChange(**place, value=[2])], {"scratch": tmp_path}),
        ("file:///s", "TARGET", [KeyChange(**place, deletes=True, time_ms=60)], {"scratch": tmp_path}),
    ]
