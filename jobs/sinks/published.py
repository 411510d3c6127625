"""What a sink that keeps a marker beside its output does with a token: a decision without I/O.

The marker says which attempt has published, or begun, last, and up to which batch of the job's history. It is changed in
the same transaction as the output, so whoever holds it locked knows what is visible.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec


class Published(msgspec.Struct, frozen=True):
    """The marker of one sink of one job.

    Attributes:
        attempt: The highest attempt that has begun to use the sink.
        batch_id: Output of batches up to this one is visible; -1: of none.
    """

    attempt: int
    batch_id: int


class Step(Enum):
    """What to do with a token."""

    APPLY = auto()  # make it visible, and move the marker
    DONE = auto()  # it is visible, or disowned: change nothing
    REFUSE = auto()  # a newer attempt holds the sink, and its history does not contain the batch


def next_step(marker: Published | None, attempt: int, batch_id: int) -> Step:
    """What to do with the token of a batch, given the marker.

    A job that went back to an earlier savepoint has set the marker back at its start, under its own attempt: what an older
    attempt has committed beyond that is refused.
    """
    if marker is None:
        return Step.APPLY
    if batch_id <= marker.batch_id:
        return Step.DONE if attempt <= marker.attempt else Step.REFUSE
    return Step.APPLY if attempt >= marker.attempt else Step.REFUSE


def is_rewound(marker: Published | None, committed_batch_id: int) -> bool:
    """Whether output is visible of batches that the history of the attempt which starts does not contain."""
    return marker is not None and marker.batch_id > committed_batch_id
