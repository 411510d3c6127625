"""How far a job's time has advanced, as recorded in the commit log and in manifests."""

from __future__ import annotations

import msgspec

from ..identifiers import OperatorUid


class EventTime(msgspec.Struct, frozen=True):
    """An operator's event time after a batch, in milliseconds since the epoch.

    Attributes:
        latest_ms: The latest event time of any record so far; None if no record had one.
        watermark_ms: The watermark up to which timers have fired; None before any. It never goes back.
        origins: For an operator with several inputs, `latest_ms` of each input by its name; left out where there is
            only one input.
        splits: `latest_ms` of each split of an input, by the name of the input's splits; left out where none is in
            splits.
    """

    latest_ms: int | None = None
    watermark_ms: int | None = None
    origins: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    splits: dict[str, dict[str, int]] | msgspec.UnsetType = msgspec.UNSET


class JobTime(msgspec.Struct, frozen=True):
    """A job's time after a batch.

    Attributes:
        event_times: Each operator's event time, by uid; operators without event time are left out.
        time_batches: How many of the job's batches so far advanced the time without input. Spark does not count them,
            so its own batch numbers are lower by this many.
        processing_ms: The processing time of the batch, in milliseconds since the epoch; 0 before any, and in what
            earlier versions have written. The next batch has the same one or a later one, whatever its driver's clock
            says: an entry that has expired stays so, and a timer that has fired is not set again.
    """

    event_times: dict[OperatorUid, EventTime] = {}
    time_batches: int = 0
    processing_ms: int = 0
