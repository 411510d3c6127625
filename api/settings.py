"""The control plane's settings, read from environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.api.errors import SettingInvalidError
from keyscale.api.job_secrets import JobSecrets
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
RESTORE_TIMEOUT_MS = 600_000
VERIFY_TIMEOUT_MS = 120_000
_DURATION_MS_MAX = 7 * 24 * 3600 * 1000
_STORE_VARIABLE_PREFIXES = ("AWS_", "KEYSCALE_S3_", "KEYSCALE_STORE_")


@dataclass(frozen=True, slots=True)
class Settings:
    """The control plane's settings; see `from_environment` for the variables.

    Attributes:
        home: The directory of the embedded database, the admin token, the drivers' logs and the local store.
        database_url: The PostgreSQL to use; None: start the embedded one under `home`.
        store_url: Root of all snapshots; fixed for a job when the job is created.
        spark_master: `local` means a local master with one core per subtask and one more.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        allowed_hosts: Host names under which the API may be called, besides the loopback ones.
        artifact_bytes_max: Largest size of an upload.
        store_environment: Variables that only the object store's client reads; passed on to drivers.
        job_secrets: The secrets that jobs may name.
        driver_memory: Heap of a driver's JVM, as Spark writes it.
        restore_timeout_ms: How long the new driver of a rescale may take to restore the savepoint.
        verify_timeout_ms: How long it may then take to commit its first batch.
    """

    home: Path
    database_url: str | None = None
    store_url: str = ""
    spark_master: str = "local"
    host: str = "127.0.0.1"
    port: int = 8080
    allowed_hosts: frozenset[str] = frozenset()
    artifact_bytes_max: int = 256 << 20
    store_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    job_secrets: JobSecrets = field(default_factory=JobSecrets)
    driver_memory: str = "1g"
    restore_timeout_ms: int = RESTORE_TIMEOUT_MS
    verify_timeout_ms: int = VERIFY_TIMEOUT_MS

    @property
    def control_url(self) -> str:
        """The URL at which drivers on this host reach the control plane."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def runs_directory(self) -> Path:
        """Holds one directory per job and attempt, with the files of the launcher and the driver."""
        return self.home / "runs"

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads KEYSCALE_HOME, _DATABASE_URL, _STORE_URL, _SPARK_MASTER, _HOST, _PORT, _ALLOWED_HOSTS, _DRIVER_MEMORY.

        Raises:
            SettingInvalidError: A variable has an invalid value.
        """
        source = os.environ if environment is None else environment
        home = Path(source.get("KEYSCALE_HOME") or ".keyscale").expanduser().absolute()
        if "," in str(home):
            raise SettingInvalidError("KEYSCALE_HOME must not contain a comma: Spark would read it as two directories")
        port = source.get("KEYSCALE_PORT") or "8080"
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise SettingInvalidError("KEYSCALE_PORT must be a number from 0 to 65535")
        store_url = source.get("KEYSCALE_STORE_URL") or (home / "store").as_uri()
        if not store_url.startswith(("file:///", "s3://")):
            raise SettingInvalidError("KEYSCALE_STORE_URL must begin with file:/// or s3://")
        return cls(
            home=home,
            database_url=source.get("KEYSCALE_DATABASE_URL") or None,
            store_url=store_url,
            spark_master=source.get("KEYSCALE_SPARK_MASTER") or "local",
            host=source.get("KEYSCALE_HOST") or "127.0.0.1",
            port=int(port),
            allowed_hosts=frozenset(filter(None, (source.get("KEYSCALE_ALLOWED_HOSTS") or "").lower().split(","))),
            store_environment={
                name: value for name, value in source.items() if name.startswith(_STORE_VARIABLE_PREFIXES)
            },
            job_secrets=JobSecrets(
                {name: value for name, value in source.items() if name.startswith(JOB_SECRET_PREFIX)},
                _directory(source.get("KEYSCALE_JOB_SECRETS_DIRECTORY")),
            ),
            driver_memory=source.get("KEYSCALE_DRIVER_MEMORY") or "1g",
            restore_timeout_ms=_duration_ms(source, "KEYSCALE_RESTORE_TIMEOUT_MS", RESTORE_TIMEOUT_MS),
            verify_timeout_ms=_duration_ms(source, "KEYSCALE_VERIFY_TIMEOUT_MS", VERIFY_TIMEOUT_MS),
        )


def _duration_ms(source: Mapping[str, str], name: str, default_ms: int) -> int:
    text = source.get(name) or str(default_ms)
    if not text.isascii() or not text.isdigit() or not 1000 <= int(text) <= _DURATION_MS_MAX:
        raise SettingInvalidError(f"{name} must be a number of milliseconds from 1000 to {_DURATION_MS_MAX}")
    return int(text)


def _directory(path: str | None) -> Path | None:
    if not path:
        return None
    if not Path(path).is_dir():
        raise SettingInvalidError(f"KEYSCALE_JOB_SECRETS_DIRECTORY: {path} is not a directory")
    return Path(path).absolute()
