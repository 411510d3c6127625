"""The metrics of users' functions, which the driver collects from tasks."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from keyscale.user_series import OTHER, USER_SERIES_MAX, gauges_of, latest, overflowing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keyscale.state.doors.catalogue import JobCounters
    from keyscale.user_series import Key, UserSeries

    from ..executor.task_reports import TaskReport

NAMES_MAX = 2 * USER_SERIES_MAX
"""The most names with a meaning or a warning: the control plane refuses a report with more meanings."""


class UserMetrics:
    """The gauges of an attempt's subtasks, and the meanings of all metrics.

    Counters and histograms are in the job's counters.
    """

    def __init__(self) -> None:
        self.help: dict[str, str] = {}
        self._gauges: dict[int, dict[Key, UserSeries]] = {}
        self._overflowing: set[str] = set()

    @property
    def gauges(self) -> tuple[UserSeries, ...]:
        """The gauges of the job; a subtask's gauge keeps its last value."""
        return gauges_of({subtask: series.values() for subtask, series in self._gauges.items()})

    def saw(self, reports: Sequence[TaskReport], counters: JobCounters) -> Iterator[str]:
        """Takes the reports of a committed batch.

        The counters are the job's counters after the batch. Yields a warning at the first value of a metric's labels
        that is too many.
        """
        for report in reports:
            for name, described in report.user_help.items():
                if name in self.help or len(self.help) < NAMES_MAX:
                    self.help[name] = described
            if report.user_series:
                self._gauges[report.subtask] = latest(self._gauges.get(report.subtask, {}), report.user_series)
        batch = chain.from_iterable(report.user_series for report in reports)
        new = sorted(overflowing(counters.user_series, batch) - self._overflowing)
        for name in new[: NAMES_MAX - len(self._overflowing)]:
            self._overflowing.add(name)
            yield (
                f"the job's own metrics have more than {USER_SERIES_MAX} series: new values of the labels of {name!r}"
                f" count as {OTHER!r}"
            )
