"""A demo has a home and a control plane of its own, and leaves no process, however it ends."""

from __future__ import annotations

import io
import os
import signal
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console

from keyscale.api.cli.root import keyscale
from keyscale.deploy.demo import __main__ as commands
from keyscale.deploy.demo import home_processes, run, verdict
from keyscale.deploy.demo.errors import DemoError
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from keyscale.deploy.demo.kill_and_rescale import KillAndRescale
from keyscale.deploy.demo.outage import outage_play
from keyscale.deploy.demo.outage.outage_play import OutageScenario
from keyscale.deploy.demo.reference import Check
from keyscale.deploy.demo.run import Demo
from keyscale.deploy.demo.scenario import RescaleScenario, UpgradeScenario
from keyscale.deploy.demo.upgrade.upgrade_play import Upgrade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONNECTION = SimpleNamespace(dashboard_url="http://here/ui/", token="the-token")  # noqa: S106 - a test's own


class Course(verdict.Verdict):
    """A verdict with a course of one word."""

    def show_course(self, console: Console) -> None:
        console.print("the course")


class Played:
    """The control plane of a demo and its play; what is done is kept in order."""

    page = "jobs/a"

    def __init__(self, home: Path) -> None:
        self.home = home
        self.done: list[Any] = []
        self.left: list[str] = ["left"]
        self.fails = False
        self.connection = CONNECTION

    def made(self, *given: Any) -> Played:
        self.done.append(given)
        return self

    def start(self) -> None:
        self.done.append(("start", sorted(each.name for each in self.home.iterdir())))

    def stop(self) -> None:
        self.done.append("stop")

    def processes_of(self, home: Path) -> list[str]:
        return [f"{len(self.done)} of {home.name}"]

    def totals(self) -> dict[str, int]:
        return {"files": 7}

    @contextmanager
    def client(self, connection: Any) -> Iterator[str]:
        assert connection is CONNECTION
        yield "the client"
        self.done.append("the client ends")

    def perform(self, control_plane: str, directory: Path, display: Any) -> Course:
        self.done.append((control_plane, directory, display._totals))
        if self.fails:
            raise DemoError("it took too long")
        return Course([Check("rows", "1", "1", holds=True)], 12.4)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played(tmp_path / "demo")
    monkeypatch.setattr(run, "ControlPlaneProcess", made.made)
    monkeypatch.setattr(run, "Keyscale", made.client)
    monkeypatch.setattr(run, "processes_of", made.processes_of)
    monkeypatch.setattr(run, "end_processes", lambda left: made.done.append(("end", *left)))
    return made


def demo_of(played: Played, *, stay: bool = False, **settings: str) -> tuple[Demo, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, width=200)
    return Demo(played.home, 4711, cast("Any", played), console, stay, settings), text


def test_a_demo_begins_in_an_empty_home_and_ends_all_that_works_on_it(played: Played) -> None:
    (played.home / "old").mkdir(parents=True)
    demo, text = demo_of(played, KEYSCALE_STORE_URL="s3://demo")
    assert demo.run().elapsed_s == 12.4
    assert played.done == [
        ("end", "0 of demo"),
        (played.home, 4711, {"KEYSCALE_JOB_USERS": "off", "KEYSCALE_STORE_URL": "s3://demo"}),
        ("start", []),
        ("the client", played.home / "data", {"files": 7}),
        "the client ends",
        "stop",
        ("end", "6 of demo"),
    ]
    shown = text.getvalue()
    assert "http://here/ui/jobs/a" in shown
    assert shown.index("the course") < shown.index("EXACT") < shown.index("Dashboard  http://here/ui/\n")
    assert "the-token" not in shown


def test_settings_of_a_play_come_before_those_of_every_demo(played: Played) -> None:
    demo, _ = demo_of(played, KEYSCALE_JOB_USERS="on")
    demo.run()
    assert played.done[1][2] == {"KEYSCALE_JOB_USERS": "on"}


def test_a_demo_that_fails_ends_its_processes_too(played: Played) -> None:
    played.fails = True
    demo, text = demo_of(played)
    with pytest.raises(DemoError):
        demo.run()
    assert played.done[-2:] == ["stop", ("end", "5 of demo")]
    assert "Dashboard" not in text.getvalue()


def test_a_demo_that_stays_ends_when_it_is_interrupted(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Callable[..., None]] = {}

    class Interrupted:
        def __init__(self) -> None:
            self.is_set = False

        def set(self) -> None:
            self.is_set = True

        def wait(self) -> None:
            played.done.append("stays")
            for handle in handlers.values():
                self.is_set = False
                handle(2, None)
                assert self.is_set

    monkeypatch.setattr(run.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(run, "threading", SimpleNamespace(Event=Interrupted))
    demo, text = demo_of(played, stay=True)
    demo.run()
    assert played.done[-3:] == ["stays", "stop", ("end", "7 of demo")]
    assert handlers.keys() == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    assert "Token      the-token" in text.getvalue()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """The plays that the commands run, with their options."""
    kept: list[tuple[Any, dict[str, Any]]] = []

    def keep(_: Any, play: Any, **options: Any) -> int:
        kept.append((play, options))
        return 0

    monkeypatch.setattr(commands, "_run", keep)
    return kept


def command(home: Path, *arguments: str) -> None:
    done = CliRunner().invoke(keyscale, ["--home", str(home), "demo", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_the_options_of_a_demo_are_its_scenario(tmp_path: Path, ran: list[tuple[Any, dict[str, Any]]]) -> None:
    given = ["--reports", "2000", "--files", "50", "--seconds", "3.5", "--seed", "9"]
    wanted = {"reports": 2000, "files": 50, "seconds": 3.5, "seed": 9}
    command(tmp_path, *given, "--keep")
    command(tmp_path, "upgrade", *given, "--no-keep")
    command(tmp_path)
    assert ran == [
        (KillAndRescale(RescaleScenario(**wanted)), {"keep": True}),
        (Upgrade(UpgradeScenario(**wanted)), {"keep": False}),
        (KillAndRescale(RescaleScenario()), {"keep": None}),
    ]


def test_options_before_the_name_of_a_demo_are_refused(ran: list[tuple[Any, dict[str, Any]]]) -> None:
    refused = CliRunner().invoke(keyscale, ["demo", "--files", "50", "upgrade"])
    assert (refused.exit_code, "options go after `upgrade`" in refused.output, ran) == (2, True, [])


def test_the_outage_demo_has_servers_of_its_own_and_a_slow_sink_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[tuple[Any, dict[str, Any]]]
) -> None:
    servers: list[str] = []

    @contextmanager
    def play(scenario: OutageScenario, directory: Path) -> Iterator[SimpleNamespace]:
        servers.append(directory.name)
        yield SimpleNamespace(scenario=scenario, s3=SimpleNamespace(variables={"KEYSCALE_STORE_URL": "s3://demo"}))
        servers.append(f"ended after {len(ran)}")

    monkeypatch.setattr(outage_play, "outage_play", play)
    command(tmp_path, "outage", "--keep")
    command(tmp_path, "outage", "--slow-sink")
    assert [made.scenario for made, _ in ran] == [OutageScenario(), OutageScenario(service_ms=0.0, sink_ms=15.0)]
    usual = {"home": "demo-outage", "settings": {"KEYSCALE_STORE_URL": "s3://demo"}}
    assert [options for _, options in ran] == [{"keep": True, **usual}, {"keep": None, **usual}]
    assert servers == ["outage-servers", "ended after 1", "outage-servers", "ended after 2"]


@pytest.mark.parametrize(
    ("options", "is_terminal", "holds", "expected"),
    [
        ({"keep": None}, True, True, ("demo", True, {}, 0)),
        ({"keep": None}, False, False, ("demo", False, {}, 1)),
        (
            {"keep": False, "home": "demo-outage", "settings": {"a": "b"}},
            True,
            True,
            ("demo-outage", False, {"a": "b"}, 0),
        ),
        ({"keep": True}, False, True, ("demo", True, {}, 0)),
    ],
)
def test_a_demo_stays_on_a_terminal_unless_asked_and_its_exit_code_is_its_verdict(  # noqa: PLR0917 - a table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    is_terminal: bool,
    holds: bool,
    expected: tuple[str, bool, dict[str, str], int],
) -> None:
    made: list[dict[str, Any]] = []
    handlers: dict[int, Callable[..., None]] = {}

    def demo(**given: Any) -> SimpleNamespace:
        made.append(given)
        return SimpleNamespace(run=lambda: Course([Check("rows", "1", "1", holds=holds)], 1.0))

    monkeypatch.setattr(run, "Demo", demo)
    monkeypatch.setattr(commands, "free_port", lambda: 4711)
    monkeypatch.setattr(commands.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(commands.sys, "stdout", SimpleNamespace(isatty=lambda: is_terminal))
    monkeypatch.setattr(commands, "console_for", lambda _: "the console")
    code = commands._run(cast("Any", SimpleNamespace(home=tmp_path)), cast("Any", "the play"), **options)
    [given] = made
    assert (given["home"], given["stay"], given["settings"], code) == (tmp_path / expected[0], *expected[1:])
    assert (given["port"], given["play"], given["console"]) == (4711, "the play", "the console")
    for number in (signal.SIGTERM, signal.SIGHUP):
        with pytest.raises(SystemExit) as ended:
            handlers[number](number, None)
        assert ended.value.code == 128 + number


class Process:
    """A process of a host."""

    def __init__(self, pid: int, *, error: Exception | None = None, **facts: Any) -> None:
        self.pid, self._error, self._facts = pid, error, facts
        self.signals: list[str] = []

    @contextmanager
    def oneshot(self) -> Iterator[None]:
        if self._error is not None:
            raise self._error
        yield

    def status(self) -> str:
        return str(self._facts.get("status", psutil.STATUS_SLEEPING))

    def cmdline(self) -> list[str]:
        return list(self._facts.get("cmdline", ["python"]))

    def cwd(self) -> str:
        return str(self._facts.get("cwd", "/"))

    def environ(self) -> dict[str, str]:
        return dict(self._facts.get("environ", {"HOME": "/root"}))


def test_the_processes_of_a_home_are_known_by_their_arguments_directory_or_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = str(tmp_path / "demo")
    works: dict[str, Any] = {"cmdline": ["java", f"-Dspark.dir={home}/runs"]}
    found = [
        Process(10_000_000, **works),
        Process(20_000_000, cwd=f"{home}/data"),
        Process(30_000_000, environ={"KEYSCALE_HOME": home}),
        Process(40_000_000, status=psutil.STATUS_ZOMBIE, **works),
        Process(50_000_000, cwd="/elsewhere"),
        Process(60_000_000, error=psutil.NoSuchProcess(1)),
        Process(70_000_000, error=psutil.AccessDenied(1)),
        Process(os.getpid(), **works),
        Process(os.getppid(), **works),
    ]
    monkeypatch.setattr(home_processes.psutil, "process_iter", lambda: iter(found))
    assert [each.pid for each in processes_of(tmp_path / "demo")] == [10_000_000, 20_000_000, 30_000_000]


def test_processes_are_asked_to_end_and_only_the_rest_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, int]] = []

    class Ending:
        def __init__(self, pid: int) -> None:
            self.number = pid

        def terminate(self) -> None:
            sent.append(("terminate", self.number))
            if self.number == 1:
                raise psutil.NoSuchProcess(1)

        def kill(self) -> None:
            sent.append(("kill", self.number))

    first, second, third = Ending(1), Ending(2), Ending(3)
    waits: list[tuple[int, float]] = []

    def wait(processes: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        waits.append((len(processes), timeout))
        return [first, second], [each for each in processes if each is third]

    played = SimpleNamespace(Process=Ending, NoSuchProcess=psutil.NoSuchProcess, wait_procs=wait)
    monkeypatch.setattr(home_processes, "psutil", played)
    end_processes(cast("Any", [first, second, third]), 2.5)
    assert sent == [("terminate", 1), ("terminate", 2), ("terminate", 3), ("kill", 3)]
    assert waits == [(3, 2.5), (1, 2.5)]
