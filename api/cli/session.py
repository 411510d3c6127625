"""The state that one invocation's commands share, and common options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from keyscale.client.connection import Connection, find_connection
from keyscale.client.keyscale import Keyscale

from .output import Output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Command = TypeVar("Command", bound="Callable[..., Any]")


@dataclass(slots=True)
class Session:
    """One invocation of the CLI."""

    url: str | None
    token: str | None
    home: Path
    ca_file: Path | None = None
    as_json: bool = False

    @property
    def connection(self) -> Connection:
        """The address and token of the control plane.

        Raises `ControlPlaneNotFoundError` if they are unknown.
        """
        return find_connection(self.url, self.token, self.home, self.ca_file)

    @property
    def output(self) -> Output:
        """The output for answers."""
        return Output(as_json=self.as_json)

    def control_plane(self) -> Keyscale:
        """Returns a client of the control plane.

        Close it, or use it in a `with`.
        """
        return Keyscale(connection=self.connection)


pass_session = click.make_pass_decorator(Session)


def wait_option(until: str, *, default: bool = True) -> Callable[[Command], Command]:
    """Adds `--wait` and `--no-wait` to a command.

    Args:
        until: What the command waits for, as its help says it.
        default: Whether it waits if neither is given.
    """
    shown = "the default" if default else "default: it returns as soon as the request is accepted"
    return click.option("--wait/--no-wait", default=default, help=f"Return when {until} ({shown}).")


timeout_option = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="Seconds to wait at most; then the exit code is 3."
)


def _switch_to_json(context: click.Context, _: click.Parameter, chosen: bool) -> None:
    if chosen and (session := context.find_object(Session)) is not None:
        session.as_json = True


def json_option(command: Command) -> Command:
    """Adds `--json` to a command."""
    option = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_switch_to_json,
        help="Print the API's answer as JSON.",
    )
    return option(command)
