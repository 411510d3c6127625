"""Every command line that a page shows is one that the command line understands, with these options and arguments."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import pytest

from keyscale.api.cli.root import keyscale
from keyscale.state.__main__ import command_parser
from tests.support.repository import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
# Commands of the launcher itself, not of the CLI.
LAUNCHER = {"check", "demo", "docs", "lock", "mutants", "screenshots", "test"}
_LINE = re.compile(r"\./keyscale +([^`|;&\n]+)")
_STATE = re.compile(r"python -m keyscale\.state +([^`|;&\n]+)")


def shown(pattern: re.Pattern[str], page: Path) -> Iterator[list[str]]:
    """The arguments of each command line that a page shows in full; a placeholder for a number becomes one."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in pattern.findall(text):
        arguments = ["2" if word in {"N", "REVISION"} else word for word in words_of(line)]
        if arguments[0] not in LAUNCHER | {"COMMAND"}:
            yield arguments


def words_of(line: str) -> list[str]:
    """The words of a command line; one within quotation marks has been cut off at the second of them."""
    try:
        return shlex.split(line.strip("\\ "), comments=True)
    except ValueError:
        return shlex.split(line.strip("'\"\\ "), comments=True)


def understand(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parses arguments as the command line does, without running anything."""
    context = command.make_context(command.name, list(arguments), parent=parent)
    if isinstance(command, click.Group):
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None
        understand(inner, rest, context)


def benchmarks() -> click.Group:
    """Returns the commands of `./keyscale bench`."""
    from bench.__main__ import main  # noqa: PLC0415 - each process of the tests would import every benchmark

    return main


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with the programs that the pages upload."""
    monkeypatch.chdir(tmp_path)
    for name in ("clicks.py", "orders.py", "visits.py"):
        (tmp_path / name).touch()


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_command_lines_of_a_page_are_understood(page: Path) -> None:
    for arguments in shown(_LINE, page):
        with suppress(
            click.exceptions.Exit, click.MissingParameter
        ):  # of --version; of a sentence that names a command
            if arguments[0] != "bench":
                understand(keyscale, arguments)
            elif arguments[1:] and arguments[1] != "COMMAND":
                understand(benchmarks(), arguments[1:])


def test_the_command_lines_of_the_state_library_are_understood() -> None:
    lines = list(shown(_STATE, DOCS / "cli.md"))
    assert len(lines) == 1
    for arguments in lines:
        command_parser().parse_args(arguments)


def test_a_line_with_an_option_that_does_not_exist_is_not_understood() -> None:
    with pytest.raises(click.NoSuchOption):
        understand(keyscale, ["jobs", "start", "visits", "--at-once"])
    with pytest.raises(click.UsageError):
        understand(keyscale, ["jobs", "begin", "visits"])
    with pytest.raises(click.UsageError):
        understand(benchmarks(), ["deduplication"])


def test_every_option_of_jobs_create_is_described() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    section = page.partition("## Options of `jobs create`")[2].partition("\n## ")[0]
    jobs = keyscale.commands["jobs"]
    assert isinstance(jobs, click.Group)
    options = {name for parameter in jobs.commands["create"].params for name in parameter.opts if name[:2] == "--"}
    assert {name for name in options - {"--json", "--start"} if f"`{name}`" not in section} == set()
