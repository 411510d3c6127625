"""The commands on tokens: create, list, revoke and show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from keyscale.client.request_paths import token_path
from keyscale.vocabulary import Role

from .errors import InvalidArgumentError
from .session import Session, json_option, pass_session
from .setting_options import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

DAY_MS = 86_400_000
COLUMNS = (
    ("ID", "id"),
    ("NAME", "name"),
    ("ROLE", "role"),
    ("SCOPE", "scope"),
    ("CREATED BY", "created_by"),
    ("CREATED", "created_at_ms"),
    ("EXPIRES", "expires_at_ms"),
    ("REVOKED", "revoked_at_ms"),
)


@click.group()
def tokens() -> None:
    """Create, list and revoke the tokens of users and programs.

    Needs an administrator's token.
    """


@tokens.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"], case_sensitive=False),
    required=True,
    help="The rights of its holder.",
)
@click.option("--job", "jobs", multiple=True, help="Id or name of a job that it reaches (default: every job).")
@click.option("--label", "labels", type=Pair(), multiple=True, help="A label of the jobs that it reaches, key=value.")
@click.option("--days", type=click.IntRange(1, 3650), help="How long it is valid (default: 90).")
@click.option("--never-expires", is_flag=True, help="It is valid until it is revoked.")
@json_option
@pass_session
def create(
    session: Session,
    /,
    *,
    name: str,
    role: str,
    jobs: Sequence[str],
    labels: Sequence[tuple[str, str]],
    days: int | None,
    never_expires: bool,
) -> None:
    """Create the token NAME and print it. It cannot be shown again."""
    if never_expires and days is not None:
        raise InvalidArgumentError("give either --days or --never-expires")
    request: dict[str, Any] = {"name": name, "role": role.upper()}
    if jobs or labels:
        request["scope"] = {"jobs": list(jobs), "labels": dict(labels)}
    if never_expires or days is not None:
        request["lifetime_ms"] = None if days is None else days * DAY_MS
    with session.control_plane() as control_plane:
        answer = control_plane.post("/v1/tokens", request)
    session.output.say(answer["token"], answer)


@tokens.command(name="list")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(list(Role), case_sensitive=False),
    help="Only this role.",
)
@json_option
@pass_session
def list_tokens(session: Session, roles: Sequence[str]) -> None:
    """List the tokens, without their values."""
    with session.control_plane() as control_plane:
        answer = control_plane.get("/v1/tokens", role=roles)
    rows = [{**token, "scope": describe_scope(token["scope"])} for token in answer["tokens"]]
    session.output.table(answer, rows, COLUMNS)


@tokens.command()
@click.argument("token_id")
@json_option
@pass_session
def revoke(session: Session, token_id: str) -> None:
    """Revoke a token by its id: it stops working immediately.

    Its subscriptions to notifications are deleted.
    """
    with session.control_plane() as control_plane:
        answer = control_plane.delete(token_path(token_id))
    session.output.say(f"revoked token {token_id}", answer)


@click.command()
@json_option
@pass_session
def whoami(session: Session) -> None:
    """Show the name, role and scope of the token in use."""
    with session.control_plane() as control_plane:
        answer = control_plane.get("/v1/whoami")
    session.output.show(answer, lambda _: session.output.fields({**answer, "scope": describe_scope(answer["scope"])}))


def describe_scope(scope: dict[str, Any] | None) -> str:
    """Returns a scope as text.

    It has the names of jobs, the labels that a job must all have, and the labels of which one suffices.
    """
    if scope is None:
        return "every job"
    labels = [f"{key}={value}" for key, value in scope["labels"].items()]
    one_of = scope.get("any_labels", [])
    return ", ".join([*scope["jobs"], *labels, *([f"one of {' or '.join(one_of)}"] if len(one_of) > 1 else one_of)])
