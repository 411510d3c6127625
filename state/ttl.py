"""Time to live of state: its options, and when an entry is expired. Pure.

As in Flink: an entry carries the time of its last access, and is expired once `duration_ms` have passed since. How an
entry that is expired is got rid of, besides being dropped when it is met, is the cleanup.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self

from state.errors import DescriptorError

STAMP_BYTES = 6
STAMP_MAX_MS = (1 << (8 * STAMP_BYTES - 1)) - 1
STAMP_MIN_MS = -STAMP_MAX_MS


class UpdateType(StrEnum):
    """What counts as an access that starts an entry's time anew."""

    DISABLED = "disabled"
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class Visibility(StrEnum):
    """Whether an expired entry that still exists may be read, once, before it goes."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


class TimeDomain(StrEnum):
    """Whose time counts: the clock's, or the watermark's."""

    PROCESSING = "processing"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class IncrementalCleanup:
    """Look at `entries` more entries, in turn, for every access of the state and, if wanted, for every record.

    Reads and writes are accesses. Entries are looked at in larger steps than one access calls for, at the same rate.
    """

    entries: int = 2
    every_record: bool = False

    def __post_init__(self) -> None:
        if self.entries < 1:
            message = "incremental cleanup must look at one entry at least"
            raise DescriptorError(message)


@dataclass(frozen=True, slots=True)
class Cleanup:
    """How expired entries that nobody reads any more are removed.

    Attributes:
        full_snapshot: Leave them out of savepoints and full snapshots.
        incremental: Sweep a few entries at a time; None: do not.
        compaction: Remove them when a store is compacted in the background.
    """

    full_snapshot: bool = True
    incremental: IncrementalCleanup | None = field(default_factory=IncrementalCleanup)
    compaction: bool = True


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long an entry of a state lives after it was last accessed."""

    duration_ms: int
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: Visibility = Visibility.NEVER_RETURN_EXPIRED
    time_domain: TimeDomain = TimeDomain.PROCESSING
    cleanup: Cleanup = field(default_factory=Cleanup)

    def __post_init__(self) -> None:
        if not 0 < self.duration_ms <= STAMP_MAX_MS:
            message = f"a TTL must be 1 to {STAMP_MAX_MS} ms, not {self.duration_ms}"
            raise DescriptorError(message)

    @classmethod
    def hours(cls, hours: float) -> Self:
        """A TTL of so many hours, all else at its default; `dataclasses.replace` changes the rest."""
        return cls(round(hours * 3_600_000))

    @classmethod
    def days(cls, days: float) -> Self:
        """A TTL of so many days, all else at its default."""
        return cls(round(days * 86_400_000))

    @property
    def enabled(self) -> bool:
        return self.update_type is not UpdateType.DISABLED


class Clock(Protocol):
    """The two times a backend lives by, in ms since the epoch. Neither may go back."""

    @property
    def processing_time_ms(self) -> int: ...

    @property
    def event_time_ms(self) -> int: ...

    @property
    def event_stamp_ms(self) -> int:
        """The event time that TTLs go by; it goes back once, when the first watermark takes over from the first events."""
        ...


@dataclass(slots=True)
class BatchClock:
    """A clock that stands still within a batch, so that a batch that is run again expires the same entries.

    `advance` takes the times of the next batch; a time that lies before the one it has is ignored, so that a clock that is
    set back, or a driver on another host, never makes time go back.
    """

    processing_time_ms: int = 0
    event_time_ms: int = STAMP_MIN_MS
    latest_event_ms: int = STAMP_MIN_MS

    @property
    def event_stamp_ms(self) -> int:
        """The watermark; before there is one, the latest event: else all that the first batch writes would be expired in the second."""
        return self.event_time_ms if self.event_time_ms > STAMP_MIN_MS else self.latest_event_ms

    def saw(self, event_ms: int) -> None:
        """Takes note of an event's time."""
        self.latest_event_ms = max(self.latest_event_ms, event_ms)

    def advance(self, *, processing_time_ms: int | None = None, event_time_ms: int | None = None) -> None:
        if processing_time_ms is not None:
            self.processing_time_ms = max(self.processing_time_ms, processing_time_ms)
        if event_time_ms is not None:
            self.event_time_ms = max(self.event_time_ms, event_time_ms)

    def become(self, other: Clock) -> None:
        """Take over both times as they are, also if they lie before: a batch may be run again, and expires the same then."""
        self.processing_time_ms, self.event_time_ms = other.processing_time_ms, other.event_time_ms
        self.latest_event_ms = STAMP_MIN_MS


def is_expired(stamp_ms: int, duration_ms: int, at_ms: int) -> bool:
    """Whether an entry last accessed at `stamp_ms` is expired at `at_ms`."""
    return stamp_ms + duration_ms <= at_ms


def encode_stamp(at_ms: int) -> bytes:
    """A time of last access as it is stored, ordered as times are; one beyond what 6 bytes hold counts as the nearest."""
    return (max(STAMP_MIN_MS, min(at_ms, STAMP_MAX_MS)) + STAMP_MAX_MS + 1).to_bytes(STAMP_BYTES, "big")


def decode_stamp(raw: bytes) -> int:
    """The time that `encode_stamp` stored."""
    return int.from_bytes(raw, "big") - STAMP_MAX_MS - 1
