from __future__ import annotations

import os
import sys

import click

from api.cli.connection import CHECKOUT
from api.cli.session import Session, pass_session


@click.command()
@click.option("--host", envvar="KEYSCALE_HOST", help="Address to listen on (default: 127.0.0.1).")
@click.option(
    "--port", envvar="KEYSCALE_PORT", type=click.IntRange(0, 65535), help="Port (default: 8080; 0: a free one)."
)
@pass_session
def up(session: Session, host: str | None, port: int | None) -> None:
    """Start the control plane in the foreground; it prints its address and token. Ctrl-C stops it, running jobs go on."""
    settings = {"KEYSCALE_HOME": str(session.home), "KEYSCALE_HOST": host, "KEYSCALE_PORT": port}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH", "")])),
        **{name: str(value) for name, value in settings.items() if value is not None},
    }
    # In this very process: signals and the exit code are the control plane's own.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "api"], environment)  # noqa: S606 - our own program
