"""The embedded PostgreSQL: private, found again, and stopped in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from keyscale.db.embedded import DATABASE_USER, SUPERUSER, EmbeddedPostgres
from keyscale.db.embedded_keeper import EmbeddedPostgresKeeper
from keyscale.db.errors import EmbeddedPostgresError
from keyscale.installation import IMPORT_PATH
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

NOBODY = 65534


@pytest.fixture
def new_root() -> Iterator[Path]:
    """The directory of a server that has never been started."""
    with directory_of_server() as root:
        yield root


@pytest.fixture(scope="module")
def first_start() -> Iterator[Path]:
    """The directory of a server that was started once. To copy it takes a fraction of the time of the first start."""
    with directory_of_server() as root:
        postgres = EmbeddedPostgres(root)
        postgres.start()
        postgres.stop()
        yield root


@pytest.fixture
def root(first_start: Path, new_root: Path) -> Path:
    """The directory of a server that was started once and stopped."""
    copy(first_start, new_root)
    return new_root


def copy(root: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(root), str(to)], check=True)  # with the owners of the files


@contextmanager
def directory_of_server() -> Iterator[Path]:
    # Not pytest's tmp_path: as root, PostgreSQL runs as another user, who may not enter root's private directories.
    with tempfile.TemporaryDirectory(prefix="keyscale-embedded-", ignore_cleanup_errors=True) as directory:
        postgres = EmbeddedPostgres(Path(directory) / "postgres")
        yield postgres.root
        postgres.stop()


def query(postgres: EmbeddedPostgres, statement: str) -> object:
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute(statement).fetchone() if "SELECT" in statement else connection.execute(statement)
        return row[0] if isinstance(row, tuple) else None


def test_stored_rows_survive_a_stop_and_a_start(root: Path) -> None:
    postgres = EmbeddedPostgres(root)
    postgres.start()
    query(postgres, "CREATE TABLE kept AS VALUES (7)")
    postgres.stop()
    assert not postgres.is_running()
    postgres.start()
    assert query(postgres, "SELECT * FROM kept") == 7


def test_it_asks_for_its_password_and_listens_on_no_network(root: Path) -> None:
    postgres = EmbeddedPostgres(root)
    postgres.start()
    assert query(postgres, "SELECT current_setting('listen_addresses')") == ""
    secret = (root / "password").read_text().strip()
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.url.replace(secret, "wrong"))
    assert (root / "password").stat().st_mode & 0o077 == 0
    assert root.stat().st_mode & 0o077 == 0


def test_its_role_is_not_a_superuser_and_superusers_cannot_log_in(root: Path) -> None:
    postgres = EmbeddedPostgres(root)
    postgres.start()
    assert query(postgres, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(postgres, "COPY (VALUES (1)) TO PROGRAM 'true'")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.url.replace(f"//{DATABASE_USER}:", f"//{SUPERUSER}:"))


def test_tables_of_a_cluster_whose_one_role_was_a_superuser_are_the_new_roles(root: Path) -> None:
    postgres = EmbeddedPostgres(root)
    postgres.start()
    query(postgres, "CREATE TABLE kept AS VALUES (7)")
    postgres.stop()
    as_before = (
        f"ALTER TABLE kept OWNER TO {SUPERUSER}",
        f"ALTER DATABASE postgres OWNER TO {SUPERUSER}",
        "ALTER SCHEMA public OWNER TO pg_database_owner",
        f"DROP ROLE {DATABASE_USER}",
    )
    text = "".join(f"{statement}\n" for statement in as_before)
    postgres._run("postgres", "--single", "-D", str(root / "data"), "postgres", text=text)
    (root / "role-made").unlink()
    postgres.start()
    assert query(postgres, "SELECT * FROM kept") == 7
    query(postgres, "ALTER TABLE kept ADD COLUMN more int")
    assert (root / "role-made").exists()


def test_it_outlives_the_process_that_started_it_and_the_next_one_finds_it(root: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from keyscale.db.embedded import EmbeddedPostgres;"
        "EmbeddedPostgres(Path(sys.argv[1])).start(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(IMPORT_PATH)}
    died = subprocess.run([sys.executable, "-c", program, str(root)], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    postgres = EmbeddedPostgres(root)
    assert postgres.is_running()
    pid = (root / "data" / "postmaster.pid").read_text().splitlines()[0]
    postgres.start()
    assert (root / "data" / "postmaster.pid").read_text().splitlines()[0] == pid
    assert query(postgres, "SELECT 1") == 1


def test_it_starts_again_after_the_server_itself_was_killed(root: Path) -> None:
    postgres = EmbeddedPostgres(root)
    postgres.start()
    query(postgres, "CREATE TABLE kept AS VALUES (7)")
    os.kill(int((root / "data" / "postmaster.pid").read_text().splitlines()[0]), signal.SIGQUIT)
    wait_until(lambda: not postgres.is_running())
    postgres.start()
    assert query(postgres, "SELECT * FROM kept") == 7


def test_an_interrupted_first_start_is_repeated(new_root: Path) -> None:
    postgres = EmbeddedPostgres(new_root)
    (new_root / "data.new").mkdir(parents=True)
    (new_root / "data.new" / "PG_VERSION").write_text("18")
    postgres.start()
    assert query(postgres, "SELECT 1") == 1


def test_a_long_path_gets_a_short_socket(first_start: Path, new_root: Path) -> None:
    postgres = EmbeddedPostgres(new_root / ("long" * 30))
    new_root.mkdir()
    copy(first_start, postgres.root)
    try:
        postgres.start()
        assert query(postgres, "SELECT 1") == 1
    finally:
        postgres.stop()


def test_a_link_in_the_place_of_the_short_socket_is_not_followed(new_root: Path, tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(new_root / ("long" * 30))
    place, target = postgres.socket_directory, tmp_path / "of somebody else"
    target.mkdir(mode=0o755)
    before = target.stat()
    place.symlink_to(target)
    try:
        with pytest.raises(EmbeddedPostgresError, match="not a directory of Keyscale's"):
            postgres.start()
    finally:
        place.unlink()
    after = target.stat()
    assert (after.st_uid, after.st_mode) == (before.st_uid, before.st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_in_the_place_of_the_short_socket_is_refused(new_root: Path) -> None:
    postgres = EmbeddedPostgres(new_root / ("long" * 30))
    place = postgres.socket_directory
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    try:
        with pytest.raises(EmbeddedPostgresError, match="belongs to the user"):
            postgres.start()
    finally:
        place.rmdir()


def test_the_reason_of_a_failed_start_is_named(root: Path) -> None:
    postgres = EmbeddedPostgres(root)
    shutil.rmtree(root / "data" / "global")
    with pytest.raises(EmbeddedPostgresError, match="pg_control"):
        postgres.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_is_not_root_can_start_it_too() -> None:
    with tempfile.TemporaryDirectory(prefix="keyscale-embedded-") as directory:
        os.chown(directory, NOBODY, NOBODY)
        # A fork, not a new program: this Python may be installed where others cannot read it.
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.chdir("/")
            code = 1
            try:
                postgres = EmbeddedPostgres(Path(directory) / "postgres")
                postgres.start()
                code = 0 if postgres.is_running() else 2
                postgres.stop()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_it_is_started_again_when_it_has_died(root: Path) -> None:
    postgres = EmbeddedPostgres(root)
    postgres.start()
    query(postgres, "CREATE TABLE kept AS VALUES (7)")
    keeper = EmbeddedPostgresKeeper(postgres)
    keeper.start()
    try:
        os.kill(first_process(root), signal.SIGKILL)
        wait_until(lambda: not postgres.is_alive(), what="its death")
        wait_until(lambda: answers(postgres), 60, what="its next start")
        assert query(postgres, "SELECT * FROM kept") == 7
    finally:
        keeper.close()


def answers(postgres: EmbeddedPostgres) -> bool:
    try:
        return query(postgres, "SELECT 1") == 1
    except psycopg.OperationalError:
        return False


def first_process(root: Path) -> int:
    return int((root / "data" / "postmaster.pid").read_text().partition("\n")[0])
