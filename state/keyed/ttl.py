"""Time to live of state: its options and the expiry rule; pure.

As in Flink, an entry carries the time of its last access and is expired `duration_ms` later. A read of an expired entry
removes it; the cleanup options say how unread entries are removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from ..errors import DescriptorError
from .batch_clock import TimeDomain
from .stamp import STAMP_MAX_MS


class UpdateType(StrEnum):
    """The accesses that restart an entry's time to live."""

    DISABLED = "disabled"
    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class Visibility(StrEnum):
    """Whether an existing expired entry may be read before its removal."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@dataclass(frozen=True, slots=True)
class IncrementalCleanup:
    """Checks `entries` more entries at every access to the state.

    With `every_record` every record counts as an access, besides reads and writes. Several accesses are handled in one
    larger step, with the same total.
    """

    entries: int = 2
    every_record: bool = False

    def __post_init__(self) -> None:
        if self.entries < 1:
            raise DescriptorError("incremental cleanup must check at least one entry")


@dataclass(frozen=True, slots=True)
class Cleanup:
    """How expired entries that are no longer read are removed.

    Attributes:
        full_snapshot: Omits them from savepoints that are taken beside the batches. Savepoints of a stop or a change,
            for which batches wait, still have them: the search takes a time that grows with the state.
        incremental: Checks a few entries at a time; None for no such checks.
        compaction: Removes them when a store is compacted in the background.
    """

    full_snapshot: bool = True
    incremental: IncrementalCleanup | None = field(default_factory=IncrementalCleanup)
    compaction: bool = True


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long an entry of a state lives after its last access."""

    duration_ms: int
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: Visibility = Visibility.NEVER_RETURN_EXPIRED
    time_domain: TimeDomain = TimeDomain.PROCESSING
    cleanup: Cleanup = field(default_factory=Cleanup)

    def __post_init__(self) -> None:
        if type(self.duration_ms) is not int:
            raise DescriptorError(
                f"a TTL is a whole number of milliseconds, not a {type(self.duration_ms).__name__}; {_EXAMPLES}"
            )
        if not 0 < self.duration_ms <= STAMP_MAX_MS:
            raise DescriptorError(f"a TTL must be 1 to {STAMP_MAX_MS} ms, not {self.duration_ms}")

    @classmethod
    def hours(cls, hours: float) -> Self:
        """Returns a TTL of a number of hours.

        All other options have their defaults (see `dataclasses.replace`).
        """
        return cls(round(hours * 3_600_000))

    @classmethod
    def days(cls, days: float) -> Self:
        """Returns a TTL of a number of days, with default options."""
        return cls(round(days * 86_400_000))

    @property
    def enabled(self) -> bool:
        return self.update_type is not UpdateType.DISABLED


_EXAMPLES = "use Ttl.hours(1), Ttl.days(7) or Ttl(duration_ms)"


def check_ttl(given: object) -> None:
    """Checks that a declared TTL is a Ttl or None.

    Raises:
        DescriptorError: The TTL is something else, such as a number or a timedelta.
    """
    if given is not None and not isinstance(given, Ttl):
        raise DescriptorError(f"a TTL is declared as {type(given).__name__}; {_EXAMPLES}")


def is_expired(stamp_ms: int, duration_ms: int, at_ms: int) -> bool:
    """Returns whether an entry last accessed at `stamp_ms` is expired at `at_ms`."""
    return stamp_ms + duration_ms <= at_ms
