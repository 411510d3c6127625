"""What a Python worker keeps between tasks is of its own process, its store and its operator."""

from __future__ import annotations

import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.executor import worker


@pytest.fixture(autouse=True)
def _keeps_nothing_beyond_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_resources_of", "_open_stores_of", "_object_store_of"):
        monkeypatch.setattr(worker, name, cache(getattr(worker, name).__wrapped__))
    monkeypatch.setattr(worker, "open_store", lambda url: SimpleNamespace(url=url))
    monkeypatch.setattr(worker, "OpenStoreCache", lambda idle_s: SimpleNamespace(idle_s=idle_s))


def kept() -> list[Any]:
    return [
        worker.open_stores(),
        worker.object_store("file:///a"),
        worker.object_store("file:///b"),
        worker.worker_resources(OperatorUid("one")),
        worker.worker_resources(OperatorUid("two")),
    ]


def test_objects_are_kept_by_process_and_by_what_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = kept(), kept()
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert len({id(each) for each in first}) == 5
    assert [each.url for each in first[1:3]] == ["file:///a", "file:///b"]
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)  # a fork
    forked = kept()
    assert not {id(each) for each in first} & {id(each) for each in forked}


@pytest.mark.parametrize(("given", "expected_s"), [(None, worker.IDLE_SECONDS_MAX), ("1500", 1.5), ("0", 0.0)])
def test_stores_stay_open_as_long_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected_s: float
) -> None:
    monkeypatch.delenv(worker.WARM_IDLE_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(worker.WARM_IDLE_VARIABLE, given)
    stores: Any = worker.open_stores()
    assert stores.idle_s == expected_s


def test_a_subtask_has_its_home_here_unless_it_is_of_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[Any] = []
    exchange = SimpleNamespace(
        claim=lambda subtask: claims.append(("claim", subtask)),
        claim_free=lambda subtask: claims.append(("free", subtask)),
    )
    monkeypatch.setattr(worker, "socket_exchange", lambda: exchange)
    assert worker.open_stores_for(SubtaskIndex(1)) is worker.open_stores_ahead(SubtaskIndex(2)) is worker.open_stores()
    assert claims == [("claim", 1), ("free", 2)]
