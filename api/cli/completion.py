"""The command that prints the completion of commands for a shell."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_SHELLS = {each.name: each for each in (BashComplete, FishComplete, ZshComplete)}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a SHELL.

    For bash, add this line to ~/.bashrc: eval "$(keyscale completion bash)"
    """
    program = context.find_root().info_name or "keyscale"
    found = _SHELLS[shell](context.find_root().command, {}, program, f"_{program.upper()}_COMPLETE")
    click.echo(found.source())
