"""One PostgreSQL for all processes of a test run."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.db.embedded import EmbeddedPostgres
from tests.support.servers.postgres import create_database

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class SharedPostgres:
    """A server that the first process which needs it starts, and the process that made the directory stops."""

    directory: Path

    @classmethod
    def in_new_directory(cls) -> SharedPostgres:
        # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
        return cls(Path(tempfile.mkdtemp(prefix="keyscale-pg-")))

    def url(self) -> str:
        """Returns the server's URL, and starts the server unless it runs."""
        server = self._server
        with self._alone():
            if not server.is_running():
                server.start()
                # No test of this server cuts its power, and a disk that many tests share is slow to sync.
                data = server.root / "data"
                with (data / "postgresql.auto.conf").open("a") as settings:
                    settings.write("fsync = off\n")
                server._run("pg_ctl", "-D", str(data), "reload")
        return server.url

    def migrated(self) -> str:
        """Returns the name of a migrated database. To copy it takes a fraction of the time of the migrations."""
        # Importing these takes as long as the start of pytest, and most runs of few tests need none of them.
        from keyscale.db.connections import open_engine  # noqa: PLC0415
        from keyscale.db.migrate import migrate  # noqa: PLC0415

        url, made = self.url(), self.directory / "migrated"
        with self._alone():
            if not made.exists():
                engine = open_engine(create_database(url, "migrated"))
                migrate(engine)
                engine.dispose()
                made.touch()
        return "migrated"

    def stop(self) -> None:
        """Stops the server, if one was started, and deletes its data."""
        if (self._server.root / "data").exists():
            self._server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @property
    def _server(self) -> EmbeddedPostgres:
        return EmbeddedPostgres(self.directory / "postgres")
