"""The command line: its exit code and what it prints."""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Protocol
from unittest.mock import patch

from keyscale.api.cli.root import main

if TYPE_CHECKING:
    from keyscale.client.keyscale import Keyscale


class Connected(Protocol):
    """A control plane in a process or in a thread, with a connection of an administrator."""

    api: Keyscale


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def problem(self) -> Any:
        """The error of a command that was run with --json."""
        return json.loads(self.stderr)

    @property
    def json(self) -> Any:
        """The answer of a command that was run with --json."""
        return json.loads(self.stdout)


def keyscale(control_plane: Connected, *arguments: str) -> CommandAnswer:
    """Runs a command against a control plane, in this process."""
    connection = control_plane.api.connection
    return run("--url", connection.url, "--token", connection.token, *arguments)


def run(*arguments: str, **variables: str) -> CommandAnswer:
    """Runs a command in this process, with some more variables of the environment."""
    stdout, stderr = StringIO(), StringIO()
    with patch.dict(os.environ, variables), redirect_stdout(stdout), redirect_stderr(stderr):
        exit_code = main(arguments)
    return CommandAnswer(exit_code, stdout.getvalue(), stderr.getvalue())


def done(answer: CommandAnswer) -> CommandAnswer:
    """Returns the answer of a command that succeeded."""
    assert answer.exit_code == 0, answer.stderr
    return answer


def refused(answer: CommandAnswer, code: str) -> str:
    """Returns the text of a refusal: the detail, then the advice."""
    assert answer.exit_code == 1, answer.stdout
    assert code in answer.stderr
    return answer.stderr


def follow(control_plane: Connected, text: str) -> None:
    """Runs the first command that a refusal names."""
    named = re.search(r"`\./keyscale ([^`]+)`", text)
    assert named, text
    done(keyscale(control_plane, *shlex.split(named[1])))
