"""The commands on secrets: list and label them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from .errors import InvalidArgumentError
from .session import Session, json_option, pass_session
from .setting_options import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (("NAME", "name"), ("LABELS", "labels"), ("HAS A VALUE", "is_set"))


@click.group()
def secrets() -> None:
    """List the secrets that jobs may name, and label them."""


@secrets.command(name="list")
@json_option
@pass_session
def list_secrets(session: Session) -> None:
    """List the names and labels of the secrets in your scope."""
    with session.control_plane() as control_plane:
        answer = control_plane.get("/v1/secrets")
    rows = [
        {
            "name": each["name"],
            "labels": ", ".join(f"{key}={value}" for key, value in sorted(each["labels"].items())),
            "is_set": "yes" if each["is_set"] else "no",
        }
        for each in answer["secrets"]
    ]
    session.output.table(answer, rows, COLUMNS)


@secrets.command()
@click.argument("name")
@click.option("--label", "labels", type=Pair(), multiple=True, help="A label, key=value. May be repeated.")
@click.option("--no-labels", is_flag=True, help="Remove all labels: only users without a scope may name the secret.")
@json_option
@pass_session
def label(session: Session, /, *, name: str, labels: Sequence[tuple[str, str]], no_labels: bool) -> None:
    """Replace the labels of the secret NAME. Needs an administrator's token."""
    if bool(labels) == no_labels:
        raise InvalidArgumentError("give either --label or --no-labels")
    with session.control_plane() as control_plane:
        answer = control_plane.put(f"/v1/secrets/{quote(name, safe='')}/labels", {"labels": dict(labels)})
    shown = ", ".join(f"{key}={value}" for key, value in sorted(answer["labels"].items()))
    lacks = "" if answer["is_set"] else "; no secret of this name has a value yet"
    session.output.say(f"labelled the secret {name}: {shown or 'no labels'}{lacks}", answer)
