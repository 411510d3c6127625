"""The reader of Flink's savepoints reads what Flink has written: see FlinkSavepoints.java."""

from __future__ import annotations

from collections import defaultdict
from io import BytesIO
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.errors import KeyscaleError
from keyscale.state.doors.values import HashId
from keyscale.state.doors.writing import KeyHashing
from keyscale.state_import.errors import FlinkSavepointError, ImportUnsupportedError
from keyscale.state_import.flink_keyed_state import FlinkRow, read_header, read_rows
from keyscale.state_import.flink_metadata import METADATA, FlinkOperator, operator_id, read_metadata
from keyscale.state_import.java_data import JavaData
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAVEPOINTS = ROOT / "tests" / "golden" / "flink-savepoints-v1"
NAMES = ("heap-1", "rocksdb-2", "rocksdb-2-of-2.3")
ORDERS = range(40)
BY_CUSTOMER = {f"c{place}": [order for order in ORDERS if order % 10 == place] for place in range(10)}


def totals(location: Path) -> FlinkOperator:
    (found,) = (each for each in read_metadata(str(location)) if each.id == operator_id("totals"))
    return found


def all_rows(operator: FlinkOperator) -> Iterator[tuple[str, int, FlinkRow]]:
    """Yields the name of the state, the key group and the row."""
    for file in operator.keyed:
        header = read_header(file)
        assert header.key.arrow == pa.string()
        assert header.problem == ""
        for key_group, number, rows in read_rows(operator, file, header):
            yield from ((header.states[number].name, key_group, row) for row in rows)


def last(orders: list[int]) -> dict[str, Any]:
    order = orders[-1]
    discount = None if order % 2 == 0 else order
    return {"amount": order * 1.5, "customer": f"c{order % 10}", "discount": discount, "id": order}


@pytest.mark.parametrize("name", NAMES)
def test_reads_each_state_as_the_job_has_left_it(name: str) -> None:
    found: dict[str, dict[Any, Any]] = defaultdict(dict)
    for state, _, row in all_rows(totals(SAVEPOINTS / name)):
        part = row.map_key if row.place is None else row.place
        found[state][(row.key, part)] = row.value
        assert (row.accessed_ms is not None) == state.startswith("recent")
        assert row.namespace is None
    customers = BY_CUSTOMER.items()
    listed = [(key, place, order) for key, orders in customers for place, order in enumerate(orders)]
    assert found == {
        "count": {(key, None): len(orders) for key, orders in customers},
        "last": {(key, None): last(orders) for key, orders in customers},
        "labels": {(key, place): f"order, {order} é" for key, place, order in listed},
        "amounts": {(key, f"m{order % 4}"): order * 1.5 for key, _, order in listed},
        "pair": {(key, None): {"f0": key, "f1": orders[-1]} for key, orders in customers},
        "recent": {(key, None): orders[-1] for key, orders in customers},
        "recent_list": {(key, place): order for key, place, order in listed},
        "recent_map": {(key, f"r{order % 4}"): order for key, _, order in listed},
        "_timer_state/event_user-timers": {(key, 1_000_000 + order): None for key, _, order in listed},
        "_timer_state/processing_user-timers": {(key, 4_000_000_000_000 + order): None for key, _, order in listed},
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_java_hash_has_flinks_key_groups(name: str) -> None:
    operator = totals(SAVEPOINTS / name)
    assert operator.max_parallelism == 8
    found = {row.key: key_group for _, key_group, row in all_rows(operator)}
    ours = KeyHashing(8, HashId.JAVA).key_groups([pa.array(found.keys())])
    assert [*found.values()] == ours.tolist()


def test_a_class_that_only_kryo_can_read_is_named() -> None:
    (file,) = totals(SAVEPOINTS / "heap-1").keyed
    problems = {state.name: state.problem for state in read_header(file).states if state.problem}
    assert problems.keys() == {"generic"}
    assert "java.util.UUID" in problems["generic"]


def test_finds_an_operator_by_the_hash_of_its_uid() -> None:
    ids = {each.id for each in read_metadata(f"file://{SAVEPOINTS}/heap-1/{METADATA}")}
    assert {operator_id("orders"), operator_id("totals")} < ids
    assert operator_id("of a uid with more than sixteen bytes") not in ids


def test_refuses_what_is_no_savepoint(tmp_path: Path) -> None:
    with pytest.raises(FlinkSavepointError, match="has no file _metadata"):
        read_metadata(str(tmp_path))
    with pytest.raises(ImportUnsupportedError, match="not on this host"):
        read_metadata("s3://bucket/savepoint-1")
    (tmp_path / METADATA).write_bytes(b"")
    with pytest.raises(FlinkSavepointError, match="is not the metadata"):
        read_metadata(str(tmp_path))
    whole = (SAVEPOINTS / "heap-1" / METADATA).read_bytes()
    (tmp_path / METADATA).write_bytes(whole[:4] + b"\0\0\0\2" + whole[8:])
    with pytest.raises(ImportUnsupportedError, match="has version 2"):
        read_metadata(str(tmp_path))


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "..", "", "a\0"])
def test_a_savepoint_names_no_file_outside_of_its_directory(tmp_path: Path, path: str) -> None:
    whole = (SAVEPOINTS / "rocksdb-2" / METADATA).read_bytes()
    name = next(file.name for file in (SAVEPOINTS / "rocksdb-2").iterdir() if file.name != METADATA)
    told = b"\6" + len(name).to_bytes(2, "big") + name.encode()
    assert told in whole
    changed = whole.replace(told, b"\6" + len(path).to_bytes(2, "big") + path.encode())
    (tmp_path / METADATA).write_bytes(changed)
    with pytest.raises(FlinkSavepointError, match="outside of its directory"):
        read_metadata(str(tmp_path))


@pytest.mark.parametrize("name", [*NAMES, "avro-1"])
def test_a_damaged_savepoint_raises_our_own_errors(tmp_path: Path, name: str) -> None:
    random = Random(5)
    files = {file.name: file.read_bytes() for file in (SAVEPOINTS / name).iterdir()}
    for _ in range(60):
        for file, content in files.items():
            changed = bytearray(content)
            for _ in range(random.randrange(1, 4)):
                changed[random.randrange(len(changed))] = random.randrange(256)
            (tmp_path / file).write_bytes(changed[: random.choice([len(changed), random.randrange(len(changed))])])
        try:
            for operator in read_metadata(str(tmp_path)):
                for keyed in operator.keyed:
                    for _ in read_rows(operator, keyed, read_header(keyed)):
                        pass
        except KeyscaleError:
            pass


def test_reads_no_more_than_the_stream_has() -> None:
    with pytest.raises(FlinkSavepointError, match="would have 2147483647 bytes"):
        JavaData(BytesIO(b"\x7f\xff\xff\xff"), 4).block()


def rows_of(uid: str) -> dict[str, list[FlinkRow]]:
    """Returns the rows of an operator of the savepoint with values of Avro, by state."""
    (operator,) = (each for each in read_metadata(str(SAVEPOINTS / "avro-1")) if each.id == operator_id(uid))
    found: dict[str, list[FlinkRow]] = defaultdict(list)
    for file in operator.keyed:
        header = read_header(file)
        assert header.problem == ""
        for _, number, rows in read_rows(operator, file, header):
            found[header.states[number].name] += rows
    return found


def test_reads_records_of_avro() -> None:
    assert {row.key: row.value for row in rows_of("totals")["last"]} == {
        order % 5: {
            "id": order,
            "count": -order,
            "customer": f"cé{order}",
            "amount": order * 1.5,
            "note": None if order % 2 == 0 else f"note {order}",
            "tags": [f"tag{each}" for each in range(order % 3)],
            "parts": [(f"part{each}", order * each) for each in range(order % 3)],
            "paid": order % 2 == 0,
            "status": "NEW" if order % 2 == 0 else "SENT",
        }
        for order in range(7, 12)
    }


def test_reads_windows_and_their_timers() -> None:
    window = {"start": 1000, "end": 2000}
    found = rows_of("windows")
    assert {row.key: (row.namespace, row.value) for row in found["window-contents"]} == {
        0: (window, 10),
        1: (window, 11),
    }
    timers = [(row.key, row.namespace, row.place) for row in found["_timer_state/event_window-timers"]]
    assert sorted(timers) == [(0, window, 1999), (1, window, 1999)]


@pytest.mark.parametrize("text", [b"\2\xff\xff\xff\xff\x7f", b"\2\xff\xff\x7f", b"\2\x80\xb0\x03"])
def test_a_text_of_impossible_characters_is_damaged(text: bytes) -> None:
    with pytest.raises(FlinkSavepointError, match=r"impossible characters|has no end"):
        JavaData.of(text).text()
