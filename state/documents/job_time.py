"""A job's time, as recorded in the commit log and in manifests."""

from __future__ import annotations

import msgspec

from keyscale.identifiers import OperatorUid

from ..keyed.stamp import STAMP_MIN_MS


class EventTime(msgspec.Struct, frozen=True):
    """An operator's event time after a batch, in milliseconds since the epoch.

    Attributes:
        latest_ms: The latest event time of any record so far; None if no record had one.
        watermark_ms: The watermark up to which timers have fired; None before any. It never goes back.
        origins: For an operator with several inputs, `latest_ms` of each input by its name; omitted for
            a single input.
        splits: `latest_ms` of each split of an input, by the name of the input's splits; omitted for an input
            without splits.
    """

    latest_ms: int | None = None
    watermark_ms: int | None = None
    origins: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    splits: dict[str, dict[str, int]] | msgspec.UnsetType = msgspec.UNSET


class JobTime(msgspec.Struct, frozen=True):
    """A job's time after a batch.

    Attributes:
        event_times: Each operator's event time, by uid; operators without event time are omitted.
        time_batches: The number of the job's batches that advanced the time without input. Spark does not count them,
            so its batch numbers are lower by this number.
        processing_ms: The processing time of the batch, in milliseconds since the epoch; 0 before any batch, and in
            documents of earlier versions. Until a user resets the time, it never goes back, whatever the driver's clock
            says: an expired entry stays expired, and a fired timer is not set again.
    """

    event_times: dict[OperatorUid, EventTime] = {}
    time_batches: int = 0
    processing_ms: int = 0


def event_time_ms(time: JobTime | msgspec.UnsetType, uid: OperatorUid) -> int:
    """Returns an operator's watermark in milliseconds since the epoch.

    Before any record it is the earliest time.
    """
    times = time.event_times if isinstance(time, JobTime) else {}
    watermark_ms = times.get(uid, EventTime()).watermark_ms
    return STAMP_MIN_MS if watermark_ms is None else watermark_ms
