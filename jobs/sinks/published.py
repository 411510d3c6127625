"""Decides how a sink with a marker treats a token.

The marker is stored beside the output.

The marker names the attempt that last published or began, and the last visible batch of the job's history. It changes
in the same transaction as the output, so a transaction that has locked the marker knows what is visible.
"""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyscale.state.doors.commits import Rewind

logger = logging.getLogger(__name__)

_Token = TypeVar("_Token")


class Published(msgspec.Struct, frozen=True):
    """The marker of one sink of one job.

    Attributes:
        attempt: The highest attempt that has begun to use the sink.
        batch_id: The output of batches up to this batch is visible; -1 if no batch is visible.
    """

    attempt: int
    batch_id: int


class Step(Enum):
    """The action for a token."""

    APPLY = auto()  # make the batch visible, and move the marker
    REPLACE = auto()  # take back the output of the history that the job has left, and go on as in APPLY
    DONE = auto()  # the batch is visible, or no longer part of the history: do nothing
    REFUSE = auto()  # a newer attempt holds the sink, and its history does not contain the batch


def decoded_token(token: str, kind: type[_Token]) -> _Token | None:
    """Decodes a token.

    Returns None if a sink of another kind, which had the uid before, has written it.
    """
    try:
        return msgspec.json.decode(token, type=kind)
    except msgspec.DecodeError:
        logger.warning("the last committed batch is not published: a sink of another kind has staged it")
        return None


def next_step(marker: Published | None, attempt: int, batch_id: int) -> Step:
    """Decides about the token of a batch, given the marker.

    A job that goes back to an earlier savepoint sets the marker back at its start, under its own attempt. Later batches
    that an older attempt committed are then refused. A job that starts again from nothing leaves the marker: its first
    batch finds the marker of the history that the job has left.
    """
    if marker is None:
        return Step.APPLY
    if batch_id <= marker.batch_id:
        return Step.DONE if attempt <= marker.attempt else Step.REPLACE
    return Step.APPLY if attempt >= marker.attempt else Step.REFUSE


def last_kept(marker: Published, committed_batch_id: int, rewinds: Iterable[Rewind]) -> int:
    """Returns the last batch that the job's history shares with a marker.

    A program without the sink may have gone back since the marker was set, and have run any number of batches.

    Args:
        marker: The marker.
        committed_batch_id: The last committed batch.
        rewinds: The rewinds in the job's history.
    """
    return min([committed_batch_id, *(rewind.batch_id for rewind in rewinds if rewind.attempt > marker.attempt)])


def is_rewound(marker: Published | None, last_batch_id: int) -> bool:
    """Returns whether batches after the history's last batch are visible."""
    return marker is not None and marker.batch_id > last_batch_id
