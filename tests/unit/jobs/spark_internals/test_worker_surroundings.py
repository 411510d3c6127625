"""Workers know their executor by their common ancestor, and take a task at home only once Spark has accepted them."""

from __future__ import annotations

import gc
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.spark_internals import python_daemon, worker_processes
from keyscale.jobs.spark_internals.accumulators import _Lists
from keyscale.jobs.spark_internals.broadcast_payloads import INLINE_BYTES_MAX, BroadcastPayload

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    worker_processes._executor_name_of.cache_clear()
    worker_processes._settled.cache_clear()
    yield
    worker_processes._executor_name_of.cache_clear()
    worker_processes._settled.cache_clear()


def test_an_executor_is_named_by_its_host_and_the_parent_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getppid()
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert worker_processes.parent_of_workers() == os.getpid()
    assert worker_processes.executor_name() == f"{platform.node()}/{parent}"
    monkeypatch.setattr(worker_processes, "_parent_of", lambda _: None)
    worker_processes._executor_name_of.cache_clear()
    assert worker_processes.executor_name() == f"{platform.node()}/{os.getpid()}"


def test_the_parent_of_a_process_that_is_gone_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_processes._parent_of(2**22 + 1) is None
    for text, parent in (("7 (a) b) S 42 1 1", 42), ("7 (a", None), ("7 (a) S x", None)):
        monkeypatch.setattr(Path, "read_text", lambda _, encoding, text=text: text)  # noqa: ARG005
        assert worker_processes._parent_of(7) == parent


def test_modules_are_hidden_from_the_collector_once_and_again_after_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    worker_processes.settle()
    worker_processes.settle()
    assert calls == ["collect", "freeze"]
    monkeypatch.setitem(sys.modules, "a_further_module_of_this_test", sys)
    worker_processes.settle()
    assert calls == ["collect", "freeze"] * 2


@pytest.mark.parametrize(
    ("is_accepted", "exit_code", "expected"),
    [
        (True, 0, ["await line", "task line True", "open"]),
        (False, 0, ["task line False", "open"]),
        (True, 3, ["await line", "task line True"]),
    ],
)
def test_a_worker_awaits_a_task_at_home_unless_it_is_new_and_is_idle_unless_it_ends(
    monkeypatch: pytest.MonkeyPatch, is_accepted: bool, exit_code: int, expected: list[str]
) -> None:
    calls: list[str] = []
    exchange = SimpleNamespace(await_task=lambda line: calls.append(f"await {line}"), open=lambda: calls.append("open"))

    def run_task(line: Any, authenticated: bool) -> int:
        calls.append(f"task {line} {authenticated}")
        return exit_code

    monkeypatch.setattr(python_daemon, "socket_exchange", lambda: exchange)
    monkeypatch.setattr(python_daemon, "_run_task", run_task)
    assert python_daemon._run_task_at_home(cast("Any", "line"), is_accepted) == exit_code
    assert calls == expected


def test_the_daemon_prepares_its_workers_before_it_forks_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    daemon = SimpleNamespace(worker=None)
    daemon.manager = lambda: calls.append(f"manager {daemon.worker is python_daemon._run_task_at_home}")
    monkeypatch.setattr(python_daemon, "pyspark", SimpleNamespace(daemon=daemon))
    monkeypatch.setattr(python_daemon, "socket_exchange", lambda: calls.append("exchange"))
    monkeypatch.setattr(python_daemon, "settle", lambda: calls.append("settle"))
    python_daemon.run_daemon()
    assert calls == ["exchange", "settle", "manager True"]


def test_each_list_of_an_accumulator_begins_empty_and_grows_by_the_tasks_items() -> None:
    lists = _Lists[int]()
    start = [1]
    assert lists.zero(start) == []
    assert lists.addInPlace(start, [2, 3]) is start
    assert start == [1, 2, 3]


def test_only_a_large_payload_is_a_broadcast_variable_and_is_deleted_once_it_is_released() -> None:
    calls: list[Any] = []

    def broadcast(data: bytes) -> Any:
        return SimpleNamespace(value=data, destroy=lambda: calls.append(len(data)))

    context: Any = SimpleNamespace(broadcast=broadcast)
    overhead = BroadcastPayload.of(context, b"x" * 1000).size_bytes - 1000
    small, large = (BroadcastPayload.of(context, b"x" * (INLINE_BYTES_MAX - overhead + more)) for more in (0, 1))
    assert (small.size_bytes, large.size_bytes) == (INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1)
    assert (isinstance(small._content, bytes), isinstance(large._content, bytes)) == (True, False)
    for each in (small, large):
        assert set(each.open()) == {ord("x")}
        each.release()
    assert calls == [INLINE_BYTES_MAX + 1]

    def gone() -> None:
        raise ConnectionError

    BroadcastPayload(1, SimpleNamespace(value=b"", destroy=gone)).release()  # type: ignore[arg-type]
