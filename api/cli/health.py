from __future__ import annotations

import click

from api.cli.session import Session, json_option, pass_session


@click.command()
@json_option
@pass_session
def health(session: Session) -> None:
    """Show whether the control plane and what stands behind it are well."""
    with session.control_plane() as control_plane:
        answer = control_plane.get("/health")
    session.output.say("\n".join(f"{name}: {value}" for name, value in answer.items()), answer)
