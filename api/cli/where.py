from __future__ import annotations

import click

from api.cli.session import Session, json_option, pass_session


@click.command()
@click.option("--show-token", is_flag=True, help="Print the token in full; it gives full rights.")
@json_option
@pass_session
def where(session: Session, show_token: bool) -> None:
    """Show which control plane the commands talk to, its dashboard, and with which token."""
    connection = session.connection
    token = connection.token if show_token else connection.masked_token()
    answer = {"url": connection.url, "dashboard": connection.dashboard_url, "token": token, "home": str(session.home)}
    session.output.say("\n".join(f"{name + ':':<11}{value}" for name, value in answer.items()), answer)
