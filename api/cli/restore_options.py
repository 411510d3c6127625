"""The options that say from which checkpoint or savepoint a job starts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

RESTORE_OPTIONS = ("source", "from_job", "as_of_ms", "claim_mode", "allow_non_restored_state")
"""The names of the options, as a command gets them."""

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def moment_ms(text: str, now: datetime) -> int:
    """Returns a moment in milliseconds since 1970.

    The text is in UTC, as all shown times, unless it names another zone.

    Args:
        text: A date and time as in ISO 8601, or a time of day: the last moment when a clock showed it.
        now: The present moment.

    Raises:
        ValueError: The text is not a time.
    """
    found = _CLOCK.fullmatch(text)
    if found is None:
        when = datetime.fromisoformat(text)
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    else:
        hour, minute, second = (int(part or 0) for part in found.groups())
        when = now.astimezone(UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
        if when > now:
            when -= timedelta(days=1)
    return int(when.timestamp() * 1000)


class Moment(click.ParamType[int]):
    """A moment in milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Reads it as `moment_ms` does."""
        try:
            return moment_ms(str(value), datetime.now(UTC))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 09:00 or 2026-11-24T09:00", param, ctx)


def restore_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a start from a checkpoint or savepoint.

    `restore_request` makes the request of them.
    """
    for option in reversed(
        (
            click.option(
                "--from",
                "source",
                metavar="CHECKPOINT|SAVEPOINT|LOCATION",
                help="Start from exactly this: a checkpoint's number, a savepoint's id, a location, or latest.",
            ),
            click.option("--from-job", metavar="JOB", help="The job of the checkpoint or savepoint."),
            click.option(
                "--as-of",
                "as_of_ms",
                type=Moment(),
                help="Start from the newest checkpoint or savepoint before a time: 09:00 or 2026-11-24T09:00, in UTC.",
            ),
            click.option(
                "--claim-mode",
                type=click.Choice(["no-claim", "claim"]),
                help="claim: the savepoint becomes the job's own, and is deleted when it is not needed any more.",
            ),
            click.option("--allow-non-restored-state", is_flag=True, help="Drop state that the program no longer has."),
        )
    ):
        command = option(command)
    return command


def restore_request(
    *,
    source: str | None,
    from_job: str | None,
    as_of_ms: int | None,
    claim_mode: str | None,
    allow_non_restored_state: bool,
) -> dict[str, Any]:
    """Returns the fields of a request that say how to restore.

    Options that are not given are left out.
    """
    if source is not None and as_of_ms is not None:
        raise InvalidArgumentError("give either --from or --as-of")
    wanted: dict[str, Any] = {}
    if as_of_ms is not None:
        wanted = {"before_ms": as_of_ms}
    elif source is not None and source.isdecimal():
        wanted = {"checkpoint_id": int(source)}
    elif source is not None and "://" in source:
        wanted = {"location": source}
    elif source not in {None, "latest"}:
        wanted = {"savepoint_id": source}
    elif source is not None or from_job is not None:
        wanted = {"latest": True}
    if from_job is not None:
        wanted["job"] = from_job
    body: dict[str, Any] = {"restore_from": wanted} if wanted else {}
    if claim_mode is not None:
        body["claim_mode"] = claim_mode.upper().replace("-", "_")
    if allow_non_restored_state:
        body["allow_non_restored_state"] = True
    return body
