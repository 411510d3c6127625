"""A driver's status, shared by its threads.

Every heartbeat sends it to the control plane.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from keyscale.clock import now_ms
from keyscale.metrics import BATCH_PARTS, LOG_COUNTERS
from keyscale.vocabulary import DriverState, RescalePhase

from ...protocol.messages import (
    RECENT_BATCHES_MAX,
    CleanUp,
    Commit,
    Counters,
    DriverMetrics,
    Failure,
    Heartbeat,
    LiveRescale,
    ReportedSeries,
)
from ..batch.batch_metrics import (
    added_up,
    added_up_sinks,
    smoothed,
    state_bytes_of,
    timed_sinks,
    without_records,
)
from ..batch.lag_trend import LagTrend
from ..batch.record_rates import AVERAGED_MS, CoveredTime, rate_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from keyscale.identifiers import OperatorUid
    from keyscale.state.doors.catalogue import JobCounters
    from keyscale.state.doors.commits import Deleted
    from keyscale.user_series import UserSeries

    from ...protocol.messages import (
        BatchMetrics,
        CommandResult,
        FailureHistory,
        GraphNode,
        OperatorMetrics,
        SinkMetrics,
        SinkOutage,
        SourceLag,
        SourceMetrics,
    )
    from ...protocol.specification import RestartStrategy
    from ..batch.locality import Locality

_HEARTBEAT_SUBTASKS_MAX = 8192  # some 300 bytes each; the control plane reads 4 MiB
LAG_AGE_S_MIN = 10.0
"""The sources are asked every three seconds; a younger answer counts as present."""
IDLE_MS = 5000  # a job is idle that has run no batch and found no input for this long

TERMINAL_STATES = frozenset(
    {DriverState.STOPPED, DriverState.FINISHED, DriverState.FAILED, DriverState.FENCED, DriverState.WOKEN}
)


_OF_THE_DRIVER = (
    "clean_up",
    "counters",
    "failures",
    "graph",
    "last_failure",
    "pending_records",
    "restart",
    "sink_outage",
    "sources",
    "store_away_since_ms",
)
"""The metrics that the next attempt of the same driver keeps."""


class DriverStatus:
    """The driver's state, progress and command results.

    Every method may be called from any thread. A terminal state is final: the first terminal state stays, whatever
    happens while the driver ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Creates the status of a new driver.

        The clock returns seconds.
        """
        self._clock = clock
        self._committed_at: float | None = None
        self._restored_at: float | None = None
        self._rated_until: float | None = None
        self._rated_ms = 0.0  # the time that the last batch with input covers
        self._read_time, self._written_time = CoveredTime(), CoveredTime()
        self._lock = threading.Lock()
        self._state = DriverState.STANDBY
        self._attempt: int | None = None
        self._slots: int | None = None
        self._rescale: LiveRescale | None = None
        self._committed_before: Commit | None = None  # of the attempt before
        self._warms_up = False
        self._revision: int | None = None
        self._failure: Failure | None = None
        self._first_commit: Commit | None = None
        self._last_commit: Commit | None = None
        self._restored_at_ms: int | None = None
        self._metrics = DriverMetrics()
        self._has_found_no_input = False
        self._are_counted = False
        self._answered_at: float | None = None
        self._lag_trend = LagTrend()
        self._losing_query, self._lost_before = "", 0
        self._results: dict[str, CommandResult] = {}

    @property
    def state(self) -> DriverState:
        with self._lock:
            return self._state

    @property
    def commits(self) -> int:
        """Number of batches that this attempt has committed."""
        with self._lock:
            return int(self._metrics.batches)

    @property
    def input_records(self) -> int:
        """Number of records in all batches that this attempt has committed."""
        with self._lock:
            return int(self._metrics.input_records)

    @property
    def pending_records(self) -> int | None:
        """Number of records that wait; None if the sources do not count."""
        with self._lock:
            return self._metrics.pending_records if self._are_counted else None

    @property
    def is_idle(self) -> bool:
        """Whether the last poll for input found none."""
        with self._lock:
            return self._metrics.waits_for_input

    def begins(self, attempt: int) -> bool:
        """Sets the attempt that is open in the log.

        All counts start anew with another attempt.

        Returns:
            Whether it is another attempt than before.
        """
        with self._lock:
            before, self._attempt = self._attempt, attempt
            if before in {None, attempt}:
                return before is None
            kept = {name: getattr(self._metrics, name) for name in _OF_THE_DRIVER}
            self._metrics = DriverMetrics().model_copy(update=kept)
            self._committed_before, self._first_commit, self._last_commit = self._last_commit, None, None
            self._committed_at = self._restored_at = self._rated_until = self._restored_at_ms = None
            self._read_time, self._written_time, self._lag_trend = CoveredTime(), CoveredTime(), LagTrend()
            self._has_found_no_input = False
            self._losing_query, self._lost_before = "", 0
            return True

    @property
    def slots(self) -> int | None:
        """The largest parallelism that Spark can run at once; None if unknown."""
        with self._lock:
            return self._slots

    def has_slots(self, slots: int | None) -> None:
        """Sets the largest parallelism that Spark can run at once."""
        with self._lock:
            self._slots = slots

    def rescales(self, rescale: LiveRescale) -> None:
        """Sets the live rescale that is in progress."""
        with self._lock:
            self._rescale = rescale

    def rescale_reaches(self, phase: RescalePhase, **times: int) -> None:
        """Sets the phase and the times of the live rescale."""
        with self._lock:
            if self._rescale is not None:
                self._rescale = self._rescale.model_copy(update={"phase": phase, **times})

    def rescale_verified(self) -> None:
        """Sets the pause of a live rescale, from commit to commit."""
        with self._lock:
            first, before = self._first_commit, self._committed_before
            if self._rescale is not None and first is not None:
                pause = {} if before is None else {"pause_ms": first.at_ms - before.at_ms}
                self._rescale = self._rescale.model_copy(update={"committed_at_ms": first.at_ms, **pause})

    def rescale_failed(self, failure: Failure) -> None:
        """Sets why the driver goes back to the old parallelism."""
        with self._lock:
            if self._rescale is not None:
                self._rescale = self._rescale.model_copy(update={"failure": failure})

    def enter(self, state: DriverState, failure: Failure | None = None) -> None:
        with self._lock:
            if self._state not in TERMINAL_STATES:
                self._state, self._failure = state, failure

    def prepares(self) -> None:
        """Records that a standby is not ready for its assignment."""
        with self._lock:
            self._warms_up = True

    def ready(self) -> None:
        """Records that a standby is ready for its assignment."""
        with self._lock:
            self._warms_up = False

    def follows(self, revision: int) -> None:
        """Sets the revision that the driver takes its settings from."""
        with self._lock:
            self._revision = revision

    def declared(self, graph: list[GraphNode]) -> None:
        """Sets the job's graph, as its script has declared it."""
        with self._lock:
            self._metrics = self._metrics.model_copy(update={"graph": graph})

    def restored(self, at_ms: int, counters: JobCounters) -> None:
        """Records that every subtask's state is restored, with the job's counters."""
        with self._lock:
            self._restored_at_ms, self._restored_at = at_ms, self._clock()
            self._metrics = self._metrics.model_copy(update={"counters": _reported(counters)})

    def committed(
        self,
        commit: Commit,
        *,
        counters: JobCounters,
        input_records: int,
        output_records: int,
        duration_ms: float,
        operators: Sequence[OperatorMetrics] = (),
        sinks: Sequence[SinkMetrics] = (),
        has_input: bool = True,
    ) -> None:
        """Counts a committed batch.

        Times are as in DriverMetrics, `counters` are the job's counters after the batch, `operators` and `sinks` are
        the batch's metrics. A batch of timers alone has no input: the next batch with input covers its time, too,
        unless the sources have nothing to read.
        """
        with self._lock:
            self._first_commit = self._first_commit or commit
            self._last_commit = commit
            committed_at, before = self._clock(), self._committed_at
            self._committed_at = committed_at
            # From one commit to the next: the time in which the batch's input has arrived.
            cycle_ms = duration_ms if before is None else max(duration_ms, 1000 * (committed_at - before))
            old, first = self._metrics, self._metrics.batches == 0
            writes, reads, input_rate = self._written_time.extend(cycle_ms), None, old.input_records_per_second
            if has_input or old.waits_for_input:
                since = self._restored_at if self._rated_until is None else self._rated_until
                self._rated_ms = duration_ms if since is None else max(duration_ms, 1000 * (committed_at - since))
                self._rated_until = committed_at
                reads = self._read_time.extend(self._rated_ms)
                input_rate = rate_after(input_rate, input_records, reads)
            busy_ratio = duration_ms / max(cycle_ms, duration_ms, 1.0)
            of_the_batch = {
                "processed_records_per_second": 1000 * input_records / max(duration_ms, 1.0),
                "batch_duration_ms": duration_ms,
            }
            averages = {
                name: smoothed(None if first else getattr(old, name), value) for name, value in of_the_batch.items()
            }
            averages["busy_ratio"] = smoothed(None if first else old.busy_ratio, busy_ratio, cycle_ms)
            averages["input_records_per_second"] = input_rate
            with_totals = added_up(old.operators, operators, cycle_ms, reads=reads, writes=writes)
            self._metrics = old.model_copy(
                update={
                    **averages,
                    "counters": _reported(counters),
                    "batches": old.batches + 1,
                    "input_batches": (old.input_batches or 0) + has_input,
                    "input_records": old.input_records + input_records,
                    "output_records": old.output_records + output_records,
                    "operators": with_totals,
                    "sinks": added_up_sinks(old.sinks, sinks),
                    "state_bytes": state_bytes_of(with_totals) or old.state_bytes,
                }
            )

    def published(self, batch: BatchMetrics, sinks_ms: Mapping[OperatorUid, float]) -> None:
        """Adds the parts of the batch that was committed last.

        `sinks_ms` is the time that each sink took.
        """
        with self._lock:
            old = self._metrics
            averages = {
                f"batch_{part.name}": smoothed(
                    getattr(old, f"batch_{part.name}") if old.recent_batches else None, getattr(batch, part.name)
                )
                for part in BATCH_PARTS
            }
            recent = [*old.recent_batches, batch][-RECENT_BATCHES_MAX:]
            self._metrics = old.model_copy(
                update={**averages, "recent_batches": recent, "sinks": timed_sinks(old.sinks, sinks_ms)}
            )

    def user_metrics_set(self, gauges: Sequence[UserSeries], described: dict[str, str]) -> None:
        """Sets the gauges of the users' functions, and their metrics' meanings."""
        with self._lock:
            if gauges or described:
                update = {"user_gauges": _reported_series(gauges), "user_help": dict(described)}
                self._metrics = self._metrics.model_copy(update=update)

    def garbage_collected(self, ratio: float) -> None:
        """Sets the share of the tasks' time in which garbage was collected."""
        with self._lock:
            self._metrics = self._metrics.model_copy(update={"garbage_collection_ratio": ratio})

    def may_sleep(self, unwatched: Sequence[str] | None) -> None:
        """Sets the kinds of sources that a sleeping driver cannot watch.

        None means that the driver cannot sleep.
        """
        with self._lock:
            update = {"can_sleep": unwatched is not None, "unwatched": list(unwatched or ())}
            self._metrics = self._metrics.model_copy(update=update)

    def timers_due(self, at_ms: int | None) -> None:
        """Sets when the next processing-time timer is due."""
        with self._lock:
            if self._metrics.timers_due_at_ms != at_ms:
                self._metrics = self._metrics.model_copy(update={"timers_due_at_ms": at_ms})

    def locality_measured(self, locality: Locality) -> None:
        """Sets how often subtasks have run where their state was.

        Also sets how often their state was moved or rebuilt.
        """
        counts = {
            "subtask_runs": locality.runs,
            "subtask_runs_moved": locality.moved,
            "subtask_runs_rebuilt": locality.rebuilt,
        }
        with self._lock:
            self._metrics = self._metrics.model_copy(update=counts)

    def sources_have_lost(self, records: int, of_query: str) -> None:
        """Sets how many records the sources lost before a query read them.

        The losses of all queries are added.
        """
        with self._lock:
            if of_query != self._losing_query:
                self._losing_query, self._lost_before = of_query, self._metrics.lost_records
            lost = self._lost_before + records
            if self._metrics.lost_records != lost:
                since_ms = self._metrics.lost_records_since_ms or now_ms()
                update = {"lost_records": lost, "lost_records_since_ms": since_ms}
                self._metrics = self._metrics.model_copy(update=update)

    def records_wait(self, records: int, by_source: Sequence[SourceLag] = (), *, age_s: float = 0.0) -> None:
        """Sets the number of records that no committed batch has.

        Args:
            records: The number.
            by_source: The number by source and split.
            age_s: The age of the sources' last answer.
        """
        with self._lock:
            self._are_counted = True
            self._answered_at = self._clock() - age_s
            if age_s < LAG_AGE_S_MIN:
                self._lag_trend.saw(self._clock(), records)
            update = {
                "pending_records": records,
                "lag_growth": self._lag_trend.growth(),
                "source_lags": list(by_source),
            }
            self._metrics = self._metrics.model_copy(update=update)

    def host_measured(self, measured: Mapping[str, int | float]) -> None:
        """Sets the memory and the processor time of the driver's processes.

        Also sets the load of their host.
        """
        with self._lock:
            self._metrics = self._metrics.model_copy(update=dict(measured))

    def sources_are_behind(self, records: int | None) -> None:
        """Sets by how many records the last batch was behind its sources.

        It only counts if the records that wait are unknown.
        """
        with self._lock:
            if not self._are_counted and self._metrics.pending_records != records:
                if records is not None:
                    self._lag_trend.saw(self._clock(), records)
                update = {"pending_records": records, "lag_growth": self._lag_trend.growth()}
                self._metrics = self._metrics.model_copy(update=update)

    def sources_still_have(self, sources: list[SourceMetrics]) -> None:
        """Sets the records that the sources still have, as far as known."""
        with self._lock:
            self._metrics = self._metrics.model_copy(update={"sources": sources})

    def sources_keep_records(self, retention_ms: int | None) -> None:
        """Sets how long the sources keep records.

        None keeps the last known time.
        """
        if retention_ms is not None:
            with self._lock:
                self._metrics = self._metrics.model_copy(update={"source_retention_ms": retention_ms})

    def restarts(self, strategy: RestartStrategy | None, history: FailureHistory, last: Failure | None = None) -> None:
        """Sets the job's restart strategy and its failures so far."""
        with self._lock:
            known = last or self._metrics.last_failure
            self._metrics = self._metrics.model_copy(
                update={"restart": strategy, "failures": history, "last_failure": known}
            )

    def store_seen(self, away_since_ms: int | None) -> None:
        """Sets since when the object store has not answered.

        None means that it answers.
        """
        with self._lock:
            self._metrics = self._metrics.model_copy(update={"store_away_since_ms": away_since_ms})

    def sink_waited_for(self, outage: SinkOutage | None) -> None:
        """Sets the sink that batches wait for.

        None means that batches do not wait. The first failure of an outage counts.
        """
        with self._lock:
            known = self._metrics.sink_outage
            if outage is not None and known is not None and known.uid == outage.uid:
                outage = outage.model_copy(update={"since_ms": known.since_ms})
            self._metrics = self._metrics.model_copy(update={"sink_outage": outage})

    def cleaned_up(self, at_ms: int, deleted: Deleted, removed_writes: int) -> None:
        """Counts a pass of the clean-up.

        The pass has deleted objects and removed unfinished writes.
        """
        with self._lock:
            before = self._metrics.clean_up
            clean_up = CleanUp(
                passes=before.passes + 1,
                last_at_ms=at_ms,
                deleted_objects=before.deleted_objects + deleted.objects,
                deleted_bytes=before.deleted_bytes + deleted.size_bytes,
                removed_writes=before.removed_writes + removed_writes,
            )
            self._metrics = self._metrics.model_copy(update={"clean_up": clean_up})

    def clean_up_failed(self, at_ms: int, failure: Failure) -> None:
        """Sets that a pass of the clean-up has failed, and why."""
        with self._lock:
            before = self._metrics.clean_up
            failing = {"failing_since_ms": before.failing_since_ms or at_ms, "failure": failure}
            self._metrics = self._metrics.model_copy(update={"clean_up": before.model_copy(update=failing)})

    def waits_for_input(self, waits: bool) -> None:
        """Sets whether the query has looked for input and found none."""
        with self._lock:
            self._has_found_no_input |= waits
            if self._metrics.waits_for_input != waits:
                self._metrics = self._metrics.model_copy(update={"waits_for_input": waits})

    @property
    def has_looked_for_input(self) -> bool:
        """Returns whether this driver has looked for input.

        It has if it has committed a batch with input, or found no input.
        """
        with self._lock:
            return self._has_found_no_input or bool(self._metrics.input_batches)

    def answer(self, result: CommandResult) -> None:
        """Keeps a command's result until the control plane stops asking for it."""
        with self._lock:
            self._results[result.command_id] = result

    def acknowledge(self, results: Iterable[CommandResult], still_asked: Iterable[str]) -> None:
        """Forgets sent results of commands that the control plane no longer names."""
        asked = set(still_asked)
        with self._lock:
            for result in results:
                if result.command_id not in asked:
                    self._results.pop(result.command_id, None)

    def _metrics_now(self) -> DriverMetrics:
        """Returns the metrics; rates fall while the job reads nothing.

        There is no input, an outage keeps a batch waiting, or a batch takes more than twice as long as the last one.
        """
        metrics = self._metrics
        if self._answered_at is not None:
            age_s = self._clock() - self._answered_at
            metrics = metrics.model_copy(update={"lag_age_ms": 1000 * int(age_s) if age_s >= LAG_AGE_S_MIN else 0})
        if self._committed_at is None:
            return metrics
        is_away = metrics.sink_outage is not None or metrics.store_away_since_ms is not None
        is_quiet = metrics.waits_for_input or is_away
        now, quiet = self._clock(), dict[str, Any]()
        running_ms = 1000 * (now - self._committed_at)
        if is_quiet and running_ms > IDLE_MS:
            quiet["busy_ratio"] = 0.0
            is_known = metrics.pending_records is not None  # sources that never count, such as files, stay unknown
            if metrics.waits_for_input and is_known and not self._are_counted:
                quiet["pending_records"] = 0
        quiet_ms = 1000 * (now - (self._committed_at if self._rated_until is None else self._rated_until))
        quiet_ms -= quiet_ms % 1000  # so that a heartbeat is new once a second at most, until the rates are zero
        # A job whose batches are far apart is quiet only when the next batch is late.
        is_late = quiet_ms > max(IDLE_MS, min(self._rated_ms, AVERAGED_MS))
        if is_late and (is_quiet or running_ms > 2 * max(IDLE_MS, self._rated_ms)):
            span = self._read_time.without_records(quiet_ms)
            quiet["input_records_per_second"] = rate_after(metrics.input_records_per_second, 0, span)
            quiet["operators"] = [without_records(operator, span) for operator in metrics.operators]
        return metrics.model_copy(update=quiet) if quiet else metrics

    def heartbeat(self) -> Heartbeat:
        with self._lock:
            metrics = self._metrics_now()
            return Heartbeat(
                state=self._state,
                attempt=self._attempt,
                slots=self._slots,
                rescale=self._rescale,
                warms_up=self._warms_up and self._state is DriverState.STANDBY,
                revision=self._revision,
                first_commit=self._first_commit,
                last_commit=self._last_commit,
                restored_at_ms=self._restored_at_ms,
                metrics=_short(metrics),
                results=list(self._results.values()),
                failure=self._failure,
            )


def _short(metrics: DriverMetrics) -> DriverMetrics:
    """Drops the metrics of single subtasks from an overlong heartbeat."""
    if sum(len(operator.subtasks) for operator in metrics.operators) <= _HEARTBEAT_SUBTASKS_MAX:
        return metrics
    operators = [operator.model_copy(update={"subtasks": []}) for operator in metrics.operators]
    return metrics.model_copy(update={"operators": operators})


def _reported(counters: JobCounters) -> Counters:
    numbers = {metric.name: getattr(counters, metric.name) for metric in LOG_COUNTERS}
    return Counters(**numbers, user=_reported_series(counters.user_series))


def _reported_series(series: Sequence[UserSeries]) -> list[ReportedSeries]:
    return [ReportedSeries.model_validate(to_builtins(each)) for each in series]
