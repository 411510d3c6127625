from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from keyscale.api.cli import batch_replay, control_plane, root
from keyscale.api.cli.root import advice_of_command_line, keyscale, main
from keyscale.client.errors import JobFileError, OperationFailedError, WaitTimeoutError
from keyscale.errors import KeyscaleError
from keyscale.installation import VERSION
from tests.support.error_trees import error_classes


def test_the_version_is_that_of_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"keyscale {VERSION}\n"


def test_the_help_names_the_commands_that_only_the_launcher_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"`{name}`" in shown for name in ("demo", "test", "check", "lock", "docs"))


def test_the_launcher_knows_every_global_option_that_takes_a_value() -> None:
    options = [option for option in keyscale.params if isinstance(option, click.Option) and not option.is_flag]
    assert {name for option in options for name in option.opts} == {"--url", "--token", "--home", "--ca-file"}


REQUESTS_ONLY = {"HTTP_INVALID", "ROUTE_NOT_FOUND", "METHOD_NOT_ALLOWED", "REVISION_REQUIRED", "ORIGIN_NOT_ALLOWED"}
"""The command line sends no request that is refused so."""


def test_advice_on_the_command_line_has_no_words_of_http() -> None:
    shown = {error.code: advice_of_command_line(str(getattr(error, "advice", ""))) for error in error_classes()}
    words = re.compile(r"\b(GET|POST|PUT|PATCH|DELETE) /|\bHTTP\b|\b[Hh]eader\b|`detail`")
    assert {code for code, advice in shown.items() if words.search(advice)} <= REQUESTS_ONLY
    assert shown["JOB_NOT_FOUND"] == "Use the id or the name of a job. `./keyscale jobs list` lists all jobs."
    assert shown["JOB_STATUS_CONFLICT"] == "The message names the status and the command that helps."
    assert all(shown.values())


def test_advice_for_requests_alone_is_shown_as_it_is() -> None:
    assert advice_of_command_line("GET /v1/openapi.json lists every path.") == "GET /v1/openapi.json lists every path."


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, 0),
        ("text", 0),
        (4, 4),
        (click.exceptions.Exit(7), 7),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (click.UsageError("wrong"), 2),
        (JobFileError("a line is wrong"), 2),
        (WaitTimeoutError("it is late"), 3),
        (OperationFailedError("it failed"), 1),
    ],
)
def test_each_end_of_a_command_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: object, code: int
) -> None:
    def run(**given: object) -> object:
        assert given == {"args": ["jobs", "list"], "prog_name": "keyscale", "standalone_mode": False}
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(root.keyscale, "main", run)
    assert root.main(["jobs", "list"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert (printed.err != "") == isinstance(outcome, (click.UsageError, KeyscaleError))


def test_the_replay_takes_the_place_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setattr(batch_replay.os, "execve", lambda *of: became.append(of))
    batch_replay.become(Path("/run/request.json"))
    [(program, command, environment)] = became
    assert (program, command) == (sys.executable, [sys.executable, "-m", batch_replay.MODULE, "/run/request.json"])
    assert environment["PYTHONPATH"].split(":")[-1] == "/mine"
    assert environment["PYTHONSAFEPATH"] == "1"


def test_up_becomes_the_control_plane_with_the_options_in_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    became: list[Any] = []
    for name in ("KEYSCALE_HOST", "KEYSCALE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(control_plane.os, "execve", lambda *of: became.append(of))
    assert root.main(["--home", str(tmp_path), "up", "--port", "0"]) == 0
    [(program, command, environment)] = became
    assert (program, command) == (sys.executable, [sys.executable, "-P", "-m", "keyscale.api.web"])
    assert (environment["KEYSCALE_HOME"], environment["KEYSCALE_PORT"]) == (str(tmp_path), "0")
    assert "KEYSCALE_HOST" not in environment


def test_up_listens_where_its_options_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    became: list[Any] = []
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setattr(control_plane.os, "execve", lambda *of: became.append(of))
    assert root.main(["--home", str(tmp_path), "up", "--host", "::1", "--port", "7"]) == 0
    [(_, _, environment)] = became
    names = ("KEYSCALE_HOME", "KEYSCALE_HOST", "KEYSCALE_PORT")
    assert [environment[name] for name in names] == [str(tmp_path), "::1", "7"]
    assert environment["PYTHONPATH"].split(":")[-1] == "/mine"
