"""The process of a read of state: what it gets, and what it leaves when it is killed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest

from keyscale.api.access.in_flight import InFlight
from keyscale.api.access.principal import Principal
from keyscale.api.control_plane import state_process
from keyscale.api.errors import (
    StateChangeError,
    StateReadError,
    StateReadTimeoutError,
    StoreUnavailableError,
    TooManyInFlightError,
)
from keyscale.vocabulary import Role

ADA = Principal("ada", "ada", Role.OPERATOR)


def test_the_files_of_a_read_that_is_killed_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def fetch_and_hang(*_: object, env: dict[str, str], timeout: float, **__: object) -> Never:
        folder = Path(env["TMPDIR"])
        (folder / "shard").write_bytes(b"state")
        folders.append(folder)
        raise subprocess.TimeoutExpired("read", timeout)

    monkeypatch.setattr(subprocess, "run", fetch_and_hang)
    context: Any = SimpleNamespace(state_reads=InFlight("read of state", "reads of state", 1, 1))
    with pytest.raises(StateReadTimeoutError):
        state_process.read_state(context, ADA, "key", {})
    assert [folder.exists() for folder in folders] == [False]


def test_a_read_gets_the_settings_of_its_object_store_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []

    def answer(*_: object, env: dict[str, str], **__: object) -> SimpleNamespace:
        environments.append(env)
        return SimpleNamespace(returncode=0, stdout=b'{"answer": {}}')

    monkeypatch.setattr(subprocess, "run", answer)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("KEYSCALE_DATABASE_URL", "postgresql://keyscale:hunter2@db/keyscale")
    context: Any = SimpleNamespace(state_reads=InFlight("read of state", "reads of state", 1, 1))
    assert state_process.read_state(context, ADA, "key", {}) == {}
    [environment] = environments
    assert environment["AWS_REGION"] == "eu-west-1"
    assert "KEYSCALE_DATABASE_URL" not in environment


def test_a_user_has_one_read_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(state_reads=InFlight("read of state", "reads of state", 8, 1))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a second process"))
    refused = r"^the limit is 1 read of state of a user at once$"
    with context.state_reads.place(ADA.id), pytest.raises(TooManyInFlightError, match=refused):
        state_process.read_state(context, ADA, "key", {})


def ended(returncode: int = 0, **answer: Any) -> SimpleNamespace:
    return SimpleNamespace(returncode=returncode, stdout=json.dumps(answer).encode())


UNSTORED = {"code": "STATE_BATCH_NOT_STORED", "message": "wait", "domain": "user"}
REFUSED = {"code": "STATE_KEY_UNKNOWN", "message": "no such key", "domain": "user"}
AWAY = {"code": "STORE_AWAY", "message": "no answer", "domain": "external"}


class Reads:
    """Processes that read state: one that stays, and one for each read."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] = {"answer": {"rows": ["of the latest"]}}
        self.ended = ended(answer={"rows": ["of a process"]})
        self.asked: list[Any] = []
        self.context: Any = SimpleNamespace(
            state_reads=InFlight("read of state", "reads of state", 1, 1), key_readers=SimpleNamespace(ask=self.ask)
        )

    def ask(self, job_id: str, asked: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((job_id, asked))
        return self.latest

    def run(self, command: list[str], input: bytes, **options: Any) -> SimpleNamespace:  # noqa: A002 - as it is named
        assert (command, options["timeout"]) == (state_process.COMMAND, state_process.SECONDS_MAX)
        self.asked.append(json.loads(input))
        return self.ended


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads = Reads()
    monkeypatch.setattr(subprocess, "run", reads.run)
    return reads


def test_the_process_of_a_job_answers_at_once_and_another_one_waits_for_a_batch(reads: Reads) -> None:
    after = {"job_id": "job", "key": [7], "after": 5, "wait_s_max": 3.0}
    assert state_process.read_latest_key(reads.context, ADA, after) == {"rows": ["of the latest"]}
    reads.latest = {"problem": UNSTORED}
    assert state_process.read_latest_key(reads.context, ADA, after) == {"rows": ["of a process"]}
    at_once = ("job", {**after, "wait_s_max": 0.0})
    assert reads.asked == [at_once, at_once, {**after, "read": "key"}]
    with pytest.raises(StateReadError, match="STATE_BATCH_NOT_STORED: wait"):
        state_process.read_latest_key(reads.context, ADA, {**after, "after": None})
    reads.latest = {"problem": REFUSED}
    with pytest.raises(StateReadError, match="STATE_KEY_UNKNOWN: no such key"):
        state_process.read_latest_key(reads.context, ADA, after)
    assert len(reads.asked) == 5


@pytest.mark.parametrize(
    ("read", "problem", "kind"),
    [
        ("key", REFUSED, StateReadError),
        ("change", REFUSED, StateChangeError),
        ("key", AWAY, StoreUnavailableError),
        ("change", AWAY, StoreUnavailableError),
    ],
)
def test_a_refused_read_and_a_refused_change_and_a_store_that_is_away_are_three_errors(
    reads: Reads, read: Any, problem: dict[str, str], kind: type[Exception]
) -> None:
    reads.ended = ended(problem=problem)
    with pytest.raises(kind, match=f"{problem['code']}: {problem['message']}"):
        state_process.read_state(reads.context, ADA, read, {"job_id": "job"})
    assert reads.asked == [{"job_id": "job", "read": read}]
    reads.ended = ended(returncode=-9)
    with pytest.raises(StateChangeError if read == "change" else StateReadError, match="ended with exit code -9"):
        state_process.read_state(reads.context, ADA, read, {"job_id": "job"})
