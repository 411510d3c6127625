"""Broadcast variables change hands with a worker's connection; values that were read stay."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.core import broadcast
from pyspark.core.broadcast import Broadcast

from keyscale.jobs.spark_internals.worker_broadcasts import held_broadcasts, hold_broadcasts


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[int, Broadcast[str]]:
    """The variables of a worker, which a test's process is not."""
    registry: dict[int, Broadcast[str]] = {}
    monkeypatch.setattr(broadcast, "_broadcastRegistry", registry)
    return registry


def variable(directory: Path, value: str) -> str:
    path = directory / value
    path.write_bytes(pickle.dumps(value))
    return str(path)


def test_a_worker_holds_what_it_takes_over_and_nothing_else(
    tmp_path: Path, registry: dict[int, Broadcast[str]]
) -> None:
    registry[1] = Broadcast(path=variable(tmp_path, "its own"))
    taken = {2: variable(tmp_path, "b"), 0: variable(tmp_path, "a")}
    hold_broadcasts(taken)
    assert held_broadcasts() == taken
    assert {number: held.value for number, held in registry.items()} == {0: "a", 2: "b"}


def test_a_value_that_was_read_is_not_read_again(tmp_path: Path, registry: dict[int, Broadcast[str]]) -> None:
    registry[1] = Broadcast(path=variable(tmp_path, "a"))
    assert registry[1].value == "a"
    before = registry[1]
    hold_broadcasts({1: variable(tmp_path, "a")})
    assert registry[1] is before


def test_a_variable_without_a_file_cannot_be_handed_on(tmp_path: Path, registry: dict[int, Broadcast[str]]) -> None:
    registry[1] = Broadcast(path=variable(tmp_path, "a"))
    assert held_broadcasts() is not None
    assert registry[1].value == "a"
    (tmp_path / "a").unlink()
    assert held_broadcasts() is None, "Spark has deleted its file"
    with Path(variable(tmp_path, "b")).open("rb") as stream:
        registry[1] = Broadcast(sock_file=stream)  # type: ignore[call-overload] # declared as a text
    assert held_broadcasts() is None, "Spark encrypts it"
