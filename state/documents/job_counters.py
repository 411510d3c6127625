"""A job's counters in the commit log and in manifests.

They stay exact when a driver is killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from keyscale import user_series
from keyscale.metrics import LOG_COUNTERS
from keyscale.user_series import UserSeries

_NAMES = tuple(metric.name for metric in LOG_COUNTERS)


class _Counters(msgspec.Struct, frozen=True):
    """The counters of all committed batches since the job was created.

    Attributes:
        user: The counters and histograms of the users' functions; omitted without any, and by earlier versions.
    """

    if TYPE_CHECKING:

        @property
        def user(self) -> tuple[UserSeries, ...] | msgspec.UnsetType: ...

        def __init__(self, **numbers: int | tuple[UserSeries, ...] | msgspec.UnsetType) -> None: ...

        def __getattr__(self, name: str) -> int: ...

    @property
    def user_series(self) -> tuple[UserSeries, ...]:
        """The counters and histograms of the users' functions."""
        return () if isinstance(self.user, msgspec.UnsetType) else self.user

    def plus(self, batch: JobCounters) -> JobCounters:
        """Returns the counters after a batch."""
        user = user_series.added(self.user_series, batch.user_series) if batch.user_series else self.user
        return JobCounters(**{name: getattr(self, name) + getattr(batch, name) for name in _NAMES}, user=user)

    def at_least(self, other: JobCounters) -> JobCounters:
        """Returns the larger value of each counter.

        Counters only grow, so the larger value is the newer one.
        """
        user = user_series.at_least(self.user_series, other.user_series) or msgspec.UNSET
        return JobCounters(**{name: max(getattr(self, name), getattr(other, name)) for name in _NAMES}, user=user)


if TYPE_CHECKING:

    class JobCounters(_Counters, frozen=True):
        """The counters of `keyscale.metrics` that the commit log keeps."""

else:
    JobCounters = msgspec.defstruct(
        "JobCounters",
        [*((name, int, 0) for name in _NAMES), ("user", tuple[UserSeries, ...] | msgspec.UnsetType, msgspec.UNSET)],
        bases=(_Counters,),
        module=__name__,
        frozen=True,
    )

NOTHING_COUNTED = JobCounters()
