"""The commands on subscriptions to notifications."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from keyscale.client.errors import WaitTimeoutError
from keyscale.client.request_paths import subscription_path
from keyscale.vocabulary import Channel

from .session import Session, json_option, pass_session
from .setting_options import Pair
from .tokens import describe_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.client.keyscale import Keyscale

COLUMNS = (
    ("ID", "id"),
    ("CHANNEL", "channel"),
    ("TARGET", "target"),
    ("JOBS", "selector"),
    ("KINDS", "kinds"),
    ("CREATED BY", "created_by"),
    ("PENDING", "pending_count"),
    ("FAILED", "failed_count"),
)
DELIVERY_COLUMNS = (
    ("CREATED", "created_at_ms"),
    ("KIND", "kind"),
    ("STATUS", "status"),
    ("ATTEMPTS", "attempts"),
    ("NEXT", "next_at_ms"),
    ("PROBLEM", "problem"),
)
CHANNELS = ("webhook", "slack", "teams", "pagerduty", "mail")
TEST_SECONDS = 30.0
_POLL_S = 0.5


@click.group()
def subscriptions() -> None:
    """Create, list, test and delete subscriptions to notifications.

    Needs an operator's token. The messages are about the jobs in its scope.
    """


@subscriptions.command()
@click.argument("target")
@click.option(
    "--channel",
    type=click.Choice(CHANNELS, case_sensitive=False),
    default="webhook",
    show_default=True,
    help="How messages are sent.",
)
@click.option("--kind", "kinds", multiple=True, help="Only this kind, such as JOB_FAILED. May be repeated.")
@click.option("--job", "jobs", multiple=True, help="Id or name of a job that it is about (default: every job).")
@click.option("--label", "labels", type=Pair(), multiple=True, help="A label of the jobs that it is about, key=value.")
@json_option
@pass_session
def create(
    session: Session,
    /,
    *,
    target: str,
    channel: str,
    kinds: Sequence[str],
    jobs: Sequence[str],
    labels: Sequence[tuple[str, str]],
) -> None:
    """Create a subscription that sends messages to TARGET.

    TARGET is the URL of a webhook, of Slack or of Teams, a routing key of PagerDuty, or a mail address; - reads it from
    standard input. The command prints the subscription's id, and the secret of a webhook, which cannot be shown again.
    """
    request: dict[str, Any] = {
        "channel": channel.upper(),
        "target": sys.stdin.readline().strip() if target == "-" else target,
    }
    if kinds:
        request["kinds"] = [kind.upper() for kind in kinds]
    if jobs or labels:
        request["selector"] = {"jobs": list(jobs), "labels": dict(labels)}
    with session.control_plane() as control_plane:
        answer = control_plane.post("/v1/subscriptions", request)
    shown = [f"subscription {answer['id']}", *([f"secret {answer['secret']}"] if answer["secret"] else [])]
    session.output.say("\n".join(shown), answer)


@subscriptions.command(name="list")
@click.option(
    "--channel",
    "channels",
    multiple=True,
    type=click.Choice(list(Channel), case_sensitive=False),
    help="Only this channel.",
)
@json_option
@pass_session
def list_subscriptions(session: Session, channels: Sequence[str]) -> None:
    """List your subscriptions; an administrator's token lists all."""
    with session.control_plane() as control_plane:
        answer = control_plane.get("/v1/subscriptions", channel=channels)
    session.output.table(answer, map(_shown, answer["subscriptions"]), COLUMNS)


@subscriptions.command()
@click.argument("subscription_id")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The most deliveries.")
@json_option
@pass_session
def show(session: Session, subscription_id: str, limit: int) -> None:
    """Show a subscription and its newest deliveries."""
    with session.control_plane() as control_plane:
        answer = control_plane.get(subscription_path(subscription_id))
        deliveries = control_plane.get(subscription_path(subscription_id, "deliveries"), limit=limit)["deliveries"]
    whole = {**answer, "deliveries": deliveries}
    if not session.as_json:
        session.output.fields(_shown(answer))
    session.output.table(whole, deliveries, DELIVERY_COLUMNS)


@subscriptions.command()
@click.argument("subscription_id")
@json_option
@pass_session
def test(session: Session, subscription_id: str) -> None:
    """Send a test message, and show whether it arrives."""
    with session.control_plane() as control_plane:
        answer = _result(control_plane, control_plane.post(subscription_path(subscription_id, "test")))
    is_delivered = answer["status"] == "DELIVERED"
    session.output.say("delivered" if is_delivered else f"not delivered: {answer['problem']}", answer)
    if not is_delivered:
        raise click.exceptions.Exit(1)


@subscriptions.command()
@click.argument("subscription_id")
@json_option
@pass_session
def delete(session: Session, subscription_id: str) -> None:
    """Delete a subscription by its id, with its deliveries."""
    with session.control_plane() as control_plane:
        answer = control_plane.delete(subscription_path(subscription_id))
    session.output.say(f"deleted subscription {subscription_id}", answer)


def _result(control_plane: Keyscale, delivery: dict[str, Any]) -> dict[str, Any]:
    """Returns a delivery after its first attempt.

    Raises:
        WaitTimeoutError: No attempt has ended in time.
    """
    path = subscription_path(delivery["subscription_id"], "deliveries")
    until_s = time.monotonic() + TEST_SECONDS
    while time.monotonic() < until_s:
        for each in control_plane.get(path)["deliveries"]:
            if each["id"] == delivery["id"] and (each["problem"] or each["status"] != "PENDING"):
                found: dict[str, Any] = each
                return found
        time.sleep(_POLL_S)
    raise WaitTimeoutError(f"the test message was not sent within {TEST_SECONDS:.0f} s")


def _shown(subscription: dict[str, Any]) -> dict[str, Any]:
    selector, kinds = subscription["selector"], subscription["kinds"]
    return {**subscription, "selector": describe_scope(selector), "kinds": ", ".join(kinds)}
