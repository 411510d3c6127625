"""The process of a read of state: what it leaves when it is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest

from keyscale.api.access.in_flight import InFlight
from keyscale.api.access.principal import Principal
from keyscale.api.control_plane import state_process
from keyscale.api.errors import StateReadTimeoutError
from keyscale.vocabulary import Role


def test_the_files_of_a_read_that_is_killed_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def fetch_and_hang(*_: object, env: dict[str, str], timeout: float, **__: object) -> Never:
        folder = Path(env["TMPDIR"])
        (folder / "shard").write_bytes(b"state")
        folders.append(folder)
        raise subprocess.TimeoutExpired("read", timeout)

    monkeypatch.setattr(subprocess, "run", fetch_and_hang)
    context: Any = SimpleNamespace(state_reads=InFlight("reads of state", 1, 1))
    with pytest.raises(StateReadTimeoutError):
        state_process.read_state(context, Principal("ada", "ada", Role.OPERATOR), "key", {})
    assert [folder.exists() for folder in folders] == [False]
