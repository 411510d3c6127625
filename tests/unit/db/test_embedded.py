"""The embedded PostgreSQL is made once, step by step, by its own user; each step may have been interrupted."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.db import embedded, embedded_keeper
from keyscale.db.embedded import DATABASE_USER, SUPERUSER, EmbeddedPostgres
from keyscale.db.embedded_keeper import EmbeddedPostgresKeeper
from keyscale.db.errors import EmbeddedPostgresError

if TYPE_CHECKING:
    from pathlib import Path


class Programs:
    """PostgreSQL's programs, played; what they are asked for is kept."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.is_running = False
        self.fails: str | None = None

    def __call__(self, server: EmbeddedPostgres, program: str, *arguments: str, text: str = "", **_: bool) -> int:
        if arguments[-1] == "status":
            return 0 if self.is_running else 3
        self.ran.append((program, *arguments))
        if self.fails in (program, arguments[-1]):
            raise EmbeddedPostgresError(f"{program} failed")
        if program == "initdb":
            directory = server.root / "data.new"
            directory.mkdir()
            (directory / "PG_VERSION").write_text("18\n")
        elif program == "postgres":
            assert not self.is_running, "only a stopped server has a single-user mode"
            self.texts.append(text)
        else:
            self.is_running = arguments[-1] == "start"
        return 0

    @property
    def names(self) -> list[str]:
        """What was done, in order."""
        return [name if name != "pg_ctl" else rest[-1] for name, *rest in self.ran]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs()
    monkeypatch.setattr(EmbeddedPostgres, "_run", lambda *of, **given: made(*of, **given))  # noqa: PLW0108 - it becomes a method
    monkeypatch.setattr(embedded, "_unprivileged_user", lambda: None)
    return made


@pytest.fixture
def server(tmp_path: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(tmp_path / "postgres")


def test_the_first_start_makes_everything_and_a_later_one_only_starts(
    server: EmbeddedPostgres, programs: Programs
) -> None:
    server.start()
    assert programs.names == ["initdb", "postgres", "start"]
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in server.root.iterdir()}
    assert modes["password"] == 0o600
    assert stat.S_IMODE(server.root.stat().st_mode) == 0o700
    assert (server.root / "data" / "PG_VERSION").exists()
    password = (server.root / "password").read_text().strip()
    assert len(password) >= 40
    assert server.url == f"postgresql://{DATABASE_USER}:{password}@/postgres?host={server.root}"
    initdb, single, start = programs.ran
    assert f"--pwfile={server.root}/password" in initdb
    assert {"--auth=scram-sha-256", f"--username={SUPERUSER}"} <= set(initdb)
    assert programs.texts[0].splitlines()[-1] == f"ALTER ROLE {DATABASE_USER} PASSWORD '{password}'"
    assert not any(password in argument for argument in (*initdb, *single, *start)), "arguments are seen by all users"
    assert "log_min_error_statement=panic" in single
    options = start[start.index("-o") + 1]
    assert "listen_addresses=''" in options
    assert f"-k '{server.root}'" in options
    server.start()
    assert programs.names == ["initdb", "postgres", "start"], "it runs"
    server.stop()
    assert programs.ran[-1][-4:] == ("-m", "fast", "-w", "stop")
    server.stop()
    server.start()
    assert programs.names[3:] == ["stop", "start"]
    assert (server.root / "password").read_text().strip() == password


@pytest.mark.parametrize(
    ("fails", "done_again"),
    [
        ("initdb", ["initdb", "postgres", "start"]),
        ("postgres", ["postgres", "start"]),
        ("start", ["start"]),
    ],
)
def test_a_start_that_was_interrupted_goes_on_with_the_step_that_is_missing(
    server: EmbeddedPostgres, programs: Programs, fails: str, done_again: list[str]
) -> None:
    programs.fails = fails
    with pytest.raises(EmbeddedPostgresError):
        server.start()
    if fails == "initdb":  # as it dies in the middle
        for name in ("data", "data.new"):
            (server.root / name).mkdir()
    programs.fails = None
    programs.ran.clear()
    server.start()
    assert programs.names == done_again


def test_a_server_that_runs_without_its_role_is_stopped_to_make_it(
    server: EmbeddedPostgres, programs: Programs
) -> None:
    server.start()
    next(each for each in server.root.iterdir() if "role" in each.name).unlink()
    programs.ran.clear()
    server.start()
    assert programs.names == ["stop", "postgres", "start"]


def test_a_data_directory_that_was_removed_is_made_anew_with_its_role(
    server: EmbeddedPostgres, programs: Programs
) -> None:
    server.start()
    server.stop()
    shutil.rmtree(server.root / "data")
    programs.ran.clear()
    server.start()
    assert programs.names == ["initdb", "postgres", "start"]
    password = (server.root / "password").read_text().strip()
    assert [password in text for text in programs.texts] == [False, True], "the new role has the new password"


def test_a_first_process_that_exists_is_alive(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not server.is_alive()
    (server.root / "data").mkdir(parents=True)
    file = server.root / "data" / "postmaster.pid"
    answers: dict[int, type[OSError] | None] = {7: ProcessLookupError, 8: PermissionError, 9: None}

    def kill(pid: int, signal: int) -> None:
        assert signal == 0
        if (error := answers[pid]) is not None:
            raise error

    monkeypatch.setattr(embedded, "os", SimpleNamespace(kill=kill, waitpid=lambda *_: None, WNOHANG=os.WNOHANG))
    for text, is_alive in (
        ("", False),
        ("no number\n", False),
        ("7\n/data\n", False),
        ("8\n", True),
        ("9\n5432\n", True),
    ):
        file.write_text(text)
        assert server.is_alive() is is_alive, text


def test_a_long_path_has_its_socket_elsewhere_in_a_directory_of_its_own(tmp_path: Path) -> None:
    short, long, other = (EmbeddedPostgres(tmp_path / name) for name in ("p", "x" * 120, "y" * 120))
    assert short.socket_directory == short.root
    assert long.socket_directory != other.socket_directory
    assert long.socket_directory == EmbeddedPostgres(long.root).socket_directory
    assert str(os.geteuid()) in long.socket_directory.name
    assert len(str(long.socket_directory)) < 90


def test_a_directory_is_private_and_neither_a_link_nor_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True, mode=0o755)
    directory.chmod(0o755)
    embedded._make_private(directory, None)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(directory)
    with pytest.raises(EmbeddedPostgresError, match="is not a directory of Keyscale's"):
        embedded._make_private(tmp_path / "link", None)
    owner: Any = os.stat_result((0o40700, 0, 0, 0, 4711, 0, 0, 0, 0, 0))
    monkeypatch.setattr(embedded.os, "fstat", lambda _: owner)
    with pytest.raises(EmbeddedPostgresError, match="belongs to the user 4711"):
        embedded._make_private(directory, None)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(embedded.os, "fchown", lambda _, *of: given.append(of))
    embedded._make_private(directory, SimpleNamespace(pw_uid=4711, pw_gid=4712))  # type: ignore[arg-type] # an account
    assert given == [(4711, 4712)]


def test_others_may_enter_the_directories_above_and_read_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[Path] = []
    monkeypatch.setattr(embedded, "let_enter", entered.append)
    (tmp_path / "bin").mkdir()
    for name, mode in (("bin/postgres", 0o700), ("text", 0o600)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("/nowhere")
    (tmp_path / "bin").chmod(0o700)
    embedded._let_read(tmp_path)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if not path.is_symlink()}
    assert (entered, found) == ([tmp_path], {"bin": 0o705, "postgres": 0o705, "text": 0o604})


def test_a_directory_and_those_above_it_are_entered_and_not_listed() -> None:
    class Step:
        """A directory with its mode."""

        def __init__(self, mode: int, *parents: Step) -> None:
            self.mode, self.parents = 0o40000 | mode, parents

        def stat(self) -> SimpleNamespace:
            return SimpleNamespace(st_mode=self.mode)

        def chmod(self, mode: int) -> None:
            self.mode = mode

    above = Step(0o700), Step(0o755)
    directory: Any = Step(0o750, *above)
    embedded.let_enter(directory)
    assert [each.mode for each in (directory, *above)] == [0o751, 0o701, 0o40755], "what fits is left alone"


def test_a_server_that_has_died_is_started_until_it_lives_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_keeper, "POLL_S", 0.0)
    lives, done = iter([True, False, False, True]), threading.Event()
    starts: list[str] = []

    def is_alive() -> bool:
        is_there = next(lives, None)
        if is_there is None:
            done.set()
        return is_there is not False

    def start() -> None:
        starts.append("start")
        if len(starts) == 1:
            raise EmbeddedPostgresError("its processes still end")

    keeper = EmbeddedPostgresKeeper(SimpleNamespace(is_alive=is_alive, start=start))  # type: ignore[arg-type] # played
    keeper.start()
    assert done.wait(10)
    keeper.close()
    assert starts == ["start", "start"]
    assert not keeper._thread.is_alive()


@pytest.mark.parametrize(
    ("code", "said", "text", "check", "error"),
    [
        (0, "done", "", True, None),
        (3, "no server is running", "", False, None),
        (1, "no space left", "", True, "initdb failed: no space left\nthe end of the log"),
        (0, "ERROR:  syntax error", "", True, None),
        (0, "ERROR:  syntax error", "ALTER ROLE", True, "initdb failed: ERROR:  syntax error\nthe end of the log"),
    ],
)
def test_a_program_runs_apart_from_the_terminal_and_says_why_it_failed(  # noqa: PLR0917 - a table
    server: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    said: str,
    text: str,
    check: bool,
    error: str | None,
) -> None:
    given: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        given.update(options, command=command, text=options["stdin"].read().decode())
        options["stdout"].write(f"  {said}\n".encode())
        return SimpleNamespace(returncode=code)

    account = SimpleNamespace(pw_uid=4711, pw_gid=4712)
    monkeypatch.setattr(embedded, "_unprivileged_user", lambda: account)
    monkeypatch.setattr(embedded, "programs", lambda: server.root / "bin")
    monkeypatch.setattr(embedded, "subprocess", SimpleNamespace(run=run))
    server.root.mkdir()
    (server.root / "log").write_text("the end of the log")
    if error is None:
        assert server._run("initdb", "-D", "x", check=check, text=text) == code
    else:
        with pytest.raises(EmbeddedPostgresError) as failed:
            server._run("initdb", "-D", "x", check=check, text=text)
        assert str(failed.value) == error
    assert given["command"] == [f"{server.root}/bin/initdb", "-D", "x"]
    assert (given["text"], given["user"], given["group"], given["extra_groups"]) == (text, 4711, 4712, [])
    assert (given["start_new_session"], given["env"]["TZ"], given["env"].keys()) == (
        True,
        "UTC",
        {"PATH", "LC_ALL", "TZ"},
    )


def test_the_server_is_started_with_its_options_on_its_own_socket(server: EmbeddedPostgres, programs: Programs) -> None:
    server.start()
    initdb, single, start = programs.ran
    assert initdb == (
        "initdb",
        "--auth=scram-sha-256",
        f"--pwfile={server.root}/password",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--locale=C",
        "-D",
        f"{server.root}/data.new",
    )
    quiet = ("-c", "log_min_error_statement=panic")
    assert single == ("postgres", "--single", *quiet, "-D", f"{server.root}/data", "postgres")
    options = f"-c listen_addresses='' -c max_connections=100 -k '{server.root}'"
    files = ("-D", f"{server.root}/data", "-l", f"{server.root}/log")
    assert start == ("pg_ctl", *files, "-w", "-t", "60", "-o", options, "start")
    [text] = programs.texts
    created, *_ = lines = text.splitlines()
    assert f"CREATE ROLE {DATABASE_USER} LOGIN CREATEDB" in created
    assert lines[1:4] == [
        f"ALTER ROLE {SUPERUSER} PASSWORD NULL",
        f"ALTER DATABASE postgres OWNER TO {DATABASE_USER}",
        f"ALTER SCHEMA public OWNER TO {DATABASE_USER}",
    ]


def test_under_root_everything_is_prepared_for_the_user_of_the_server(
    server: EmbeddedPostgres, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = SimpleNamespace(pw_uid=4711, pw_gid=4712)
    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(embedded, "_unprivileged_user", lambda: account)
    monkeypatch.setattr(embedded, "programs", lambda: server.root / "install" / "bin")

    def make_private(directory: Path, user: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        done.append(("private", directory, user))

    monkeypatch.setattr(embedded, "_make_private", make_private)
    for name in ("let_enter", "_let_read"):
        monkeypatch.setattr(embedded, name, lambda directory, name=name: done.append((name, directory)))
    monkeypatch.setattr(embedded.os, "chown", lambda *given: done.append(("chown", *given)))
    server.start()
    assert done == [
        *[("private", server.root, account), ("let_enter", server.root.parent)] * 2,
        ("_let_read", server.root / "install"),
        ("chown", server.root / "password", 4711, 4712),
    ]
    assert programs.is_running


def test_a_start_that_the_file_system_refuses_says_why(
    server: EmbeddedPostgres, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no room")

    monkeypatch.setattr(embedded, "_make_private", refuse)
    with pytest.raises(EmbeddedPostgresError, match="no room"):
        server.start()
    assert programs.ran == []


def test_only_root_needs_a_user_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def found(look: Any, name: str, *options: str) -> str:
        asked.append((look.args, name, *options))
        if len(asked) > 1:
            raise LookupError("no room for it")
        return "the account"

    monkeypatch.setattr(embedded, "found_or_made", found)
    monkeypatch.setattr(embedded.os, "geteuid", lambda: 1000)
    assert embedded._unprivileged_user() is None
    monkeypatch.setattr(embedded.os, "geteuid", lambda: 0)
    assert embedded._unprivileged_user() == "the account"
    no_login = ("--system", "--no-create-home", "--shell", "/usr/sbin/nologin")
    assert asked == [(("keyscale-db",), "keyscale-db", *no_login)]
    with pytest.raises(EmbeddedPostgresError, match="no room for it"):
        embedded._unprivileged_user()


def test_a_server_without_its_programs_does_not_run(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> int:
        raise FileNotFoundError("pg_ctl")

    monkeypatch.setattr(EmbeddedPostgres, "_run", missing)
    assert not server.is_running()
