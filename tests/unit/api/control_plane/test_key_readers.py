"""A job's reading process answers many reads, and a new process follows after its end."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.control_plane import key_readers
from keyscale.api.control_plane.key_readers import READERS_MAX, KeyReaders
from keyscale.api.errors import StateReadError, StateReadTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import json, os, sys
open(os.path.join(os.environ["TMPDIR"], "shard"), "w").close()
for number, line in enumerate(sys.stdin):
    request = json.loads(line)
    if request.get("ends"):
        sys.exit(3)
    if request.get("hangs"):
        sys.stdin.read()
    answer = {"pid": os.getpid(), "number": number, "scratch": os.environ["TMPDIR"]}
    answer["text"] = "x" * request.get("size", 0)
    print(json.dumps({"answer": answer}), flush=True)
    if request.get("ends after"):
        sys.exit(0)
"""


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyReaders]:
    monkeypatch.setattr(key_readers, "COMMAND", [sys.executable, "-c", PROGRAM])
    readers = KeyReaders()
    yield readers
    readers.close()


def ask(readers: KeyReaders, job: str = "flights", **request: Any) -> dict[str, Any]:
    answer: dict[str, Any] = readers.ask(job, request)["answer"]
    return answer


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_reads_of_a_job_share_a_process_and_jobs_do_not(readers: KeyReaders) -> None:
    first, second, other = ask(readers), ask(readers, size=300_000), ask(readers, "other")
    assert [each["number"] for each in (first, second, other)] == [0, 1, 0]
    assert first["pid"] == second["pid"] != other["pid"]
    assert len(second["text"]) == 300_000


def test_a_process_that_has_ended_is_started_anew_and_one_that_fails_again_is_an_error(readers: KeyReaders) -> None:
    first = ask(readers, **{"ends after": True})
    second = ask(readers)
    assert (first["pid"] != second["pid"], second["number"]) == (True, 0)
    assert not Path(first["scratch"]).exists()
    with pytest.raises(StateReadError, match="without an answer"):
        ask(readers, ends=True)
    assert not Path(second["scratch"]).exists()
    assert ask(readers)["number"] == 0


def test_a_read_that_takes_too_long_ends_its_process(readers: KeyReaders, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(readers)
    monkeypatch.setattr(key_readers, "SECONDS_MAX", 0.05)
    with pytest.raises(StateReadTimeoutError):
        ask(readers, hangs=True)
    assert (is_there(first["pid"]), Path(first["scratch"]).exists()) == (False, False)


def test_the_processes_of_the_last_read_jobs_stay(readers: KeyReaders) -> None:
    found = {job: ask(readers, job) for job in map(str, range(READERS_MAX))}
    ask(readers, "0")
    ask(readers, "more")
    assert [job for job, answer in found.items() if not is_there(answer["pid"])] == ["1"]
    readers.close()
    assert [is_there(answer["pid"]) for answer in found.values()] == [False] * READERS_MAX
    assert [Path(answer["scratch"]).exists() for answer in found.values()] == [False] * READERS_MAX


def test_reads_of_a_job_at_the_same_time_take_turns(readers: KeyReaders) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(ask(readers)["number"])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(6))


def test_a_read_waits_for_another_one_of_its_job_no_longer_than_it_may_take(
    readers: KeyReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_readers, "SECONDS_MAX", 0.01)
    with readers._lent("flights") as reader:
        assert reader._turn.acquire(blocking=False)
        with pytest.raises(StateReadTimeoutError, match="other reads of the job take longer"):
            ask(readers)
        reader._turn.release()
    assert reader.users == 0
