"""The process of a read of state: what it gets, and what it leaves when it is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest

from keyscale.api.access.in_flight import InFlight
from keyscale.api.access.principal import Principal
from keyscale.api.control_plane import state_process
from keyscale.api.errors import StateReadTimeoutError, TooManyInFlightError
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
