"""A driver's granted credentials reach its AWS clients, stay private, and are renewed before they expire."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any, cast

from keyscale.jobs.protocol.messages import StoreCredentials
from keyscale.jobs.runtime.control import store_access
from keyscale.jobs.runtime.control.store_access import StoreAccess
from keyscale.jobs.runtime.errors import AttemptOverError, ControlRefusedError, ControlUnreachableError

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NOW_MS = 1_795_651_200_000


class Control:
    """A control plane that gives the next answer of a list, and a clock that goes on when the driver waits."""

    def __init__(self, *answers: Exception | int) -> None:
        self.answers = list(answers)
        self.seconds = 0.0
        self.asked_at: list[float] = []

    def store_credentials(self) -> StoreCredentials:
        """Grants credentials for some seconds."""
        self.asked_at.append(self.seconds)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        keys = {"access_key_id": "id", "secret_access_key": "secret", "session_token": "token"}
        return StoreCredentials.model_validate({**keys, "expires_at_ms": self.now_ms() + 1000 * answer})

    def now_ms(self) -> int:
        return NOW_MS + int(1000 * self.seconds)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def access_of(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreAccess:
    monkeypatch.setattr(store_access, "now_ms", control.now_ms)
    monkeypatch.setattr(store_access, "time", control)
    return StoreAccess(cast("Any", control), tmp_path / "it's" / "config")


def test_only_a_driver_whose_environment_asks_for_them_gets_credentials(tmp_path: Path) -> None:
    variables = {"AWS_CONFIG_FILE": str(tmp_path / "config")}
    assert StoreAccess.of(cast("Any", None), variables) is None
    assert StoreAccess.of(cast("Any", None), {**variables, "KEYSCALE_STORE_CREDENTIALS_RENEWED": ""}) is None
    access = StoreAccess.of(cast("Any", None), {**variables, "KEYSCALE_STORE_CREDENTIALS_RENEWED": "1"})
    assert access is not None
    assert access._configuration == tmp_path / "config"


def test_aws_clients_find_the_credentials_in_files_that_only_the_owner_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "it's").mkdir()
    control = Control(ControlUnreachableError("away"), 3600, AttemptOverError("over"))
    access = access_of(control, tmp_path, monkeypatch)
    access.open()
    access._thread.join(60)
    configuration, credentials = tmp_path / "it's" / "config", tmp_path / "it's" / "store-credentials.json"
    assert configuration.read_text().splitlines() == [
        "[default]",
        f"credential_process = cat '{tmp_path}/it'\"'\"'s/store-credentials.json'",
    ]
    assert json.loads(credentials.read_text()) == {
        "Version": 1,
        "AccessKeyId": "id",
        "SecretAccessKey": "secret",
        "SessionToken": "token",
        "Expiration": "2026-11-26T01:00:02+00:00",
    }
    assert [stat.S_IMODE(path.stat().st_mode) for path in (configuration, credentials)] == [0o600, 0o600]
    assert sorted(path.name for path in credentials.parent.iterdir()) == ["config", "store-credentials.json"]


def test_credentials_are_renewed_at_half_of_their_life_and_after_a_failure_soon_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "it's").mkdir()
    unreachable, refused = ControlUnreachableError("away"), ControlRefusedError("unknown")
    control = Control(100, unreachable, refused, OSError("full"), 40, AttemptOverError("over"))
    access = access_of(control, tmp_path, monkeypatch)
    access.renew()
    access._run()
    assert control.asked_at == [0.0, 50.0, 75.0, 87.5, 93.75, 113.75], "half of what is left"
    assert "2026-11-26T00:02:13.75" in (tmp_path / "it's" / "store-credentials.json").read_text()


def test_expired_credentials_are_asked_for_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control(*[ControlUnreachableError("away")] * 3, AttemptOverError("over"))
    access_of(control, tmp_path, monkeypatch)._run()
    assert control.asked_at == [2.0, 4.0, 6.0, 8.0]
