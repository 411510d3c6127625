"""A process that reads state gets the settings of the store, and no secret of the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.control_plane import reading_command
from keyscale.installation import IMPORT_PATH

if TYPE_CHECKING:
    import pytest

PASSED_ON = {
    "HOME": "/home/keyscale",
    "HTTPS_PROXY": "http://proxy:1",
    "KEYSCALE_S3_ENDPOINT": "http://store:1",
    "LANG": "C.UTF-8",
    "NO_PROXY": "store",
    "PATH": "/bin",
    "SSL_CERT_FILE": "/etc/ca.pem",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_PROFILE": "jobs",
}
KEPT = {
    "KEYSCALE_JOB_SECRET_ORDERS": "of-the-orders",
    "KEYSCALE_DATABASE_URL": "postgresql://me:secret@host/db",
    "MY_AWS_KEY": "x",
    "PYTHONPATH": "/elsewhere",
    "TMPDIR": "/of/the/control/plane",
}


def test_a_read_has_its_own_directory_and_the_settings_of_the_store_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_command.os, "environ", {**PASSED_ON, **KEPT})
    assert reading_command.environment_of("/scratch") == {
        **PASSED_ON,
        "PYTHONPATH": str(IMPORT_PATH),
        "TMPDIR": "/scratch",
    }
