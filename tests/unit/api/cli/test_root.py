from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from keyscale.api.cli.root import advice_of_command_line, keyscale, main
from keyscale.installation import VERSION
from tests.support.error_trees import error_classes

if TYPE_CHECKING:
    import pytest


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
