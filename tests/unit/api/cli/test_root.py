from __future__ import annotations

from typing import TYPE_CHECKING

import click

from keyscale.api.cli.root import keyscale, main
from keyscale.installation import VERSION

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
