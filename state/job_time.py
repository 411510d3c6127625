"""How far a job has come in time: a fact of the commit log and of manifests."""

from __future__ import annotations

import msgspec

from state.identifiers import OperatorUid


class EventTime(msgspec.Struct, frozen=True):
    """An operator's event time after a batch, in milliseconds since the epoch.

    Attributes:
        latest_ms: The latest event time among all records of all batches so far; None if no record had one.
        watermark_ms: The watermark that timers have been fired up to; None before any. It never goes back.
        origins: Of an operator that is fed by several sources or operators, `latest_ms` of each by its name; left out where
            there is but one.
    """

    latest_ms: int | None = None
    watermark_ms: int | None = None
    origins: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class JobTime(msgspec.Struct, frozen=True):
    """A job's time after a batch.

    Attributes:
        event_times: How far each operator has come in event time, by uid; those that have none are left out.
        time_batches: How many of the job's batches so far had no input but time. They are none of Spark's, whose own
            numbers lag behind by so many.
    """

    event_times: dict[OperatorUid, EventTime] = {}
    time_batches: int = 0
