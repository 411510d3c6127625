"""What a driver knows of itself, shared by its threads and told to the control plane with every heartbeat."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from jobs.runtime.batch_metrics import added_up, state_bytes_of
from jobs.wire import Commit, DriverMetrics, DriverState, Failure, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jobs.runtime.placement import Placement
    from jobs.wire import CommandResult, FailureHistory, OperatorMetrics, RestartStrategy

_SMOOTHING = 0.3  # weight of the newest batch in rates and durations
IDLE_MS = 5000  # without a batch for so long, and with no input found, nothing comes in

TERMINAL_STATES = frozenset({DriverState.STOPPED, DriverState.FINISHED, DriverState.FAILED, DriverState.FENCED})


class DriverStatus:
    """The driver's state, progress and answers; every method may be called from any thread.

    A terminal state is final: the first one stays, whatever happens while the driver goes down.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Of a new driver; the clock counts seconds."""
        self._clock = clock
        self._committed_at: float | None = None
        self._lock = threading.Lock()
        self._state = DriverState.STANDBY
        self._failure: Failure | None = None
        self._first_commit: Commit | None = None
        self._last_commit: Commit | None = None
        self._restored_at_ms: int | None = None
        self._metrics = DriverMetrics()
        self._results: dict[str, CommandResult] = {}

    @property
    def state(self) -> DriverState:
        with self._lock:
            return self._state

    @property
    def commits(self) -> int:
        """Batches that this attempt has committed."""
        with self._lock:
            return self._metrics.batches

    @property
    def input_records(self) -> int:
        """Records of all batches that this attempt has committed."""
        with self._lock:
            return self._metrics.input_records

    def enter(self, state: DriverState, failure: Failure | None = None) -> None:
        with self._lock:
            if self._state not in TERMINAL_STATES:
                self._state, self._failure = state, failure

    def restored(self, at_ms: int) -> None:
        with self._lock:
            self._restored_at_ms = at_ms

    def committed(
        self,
        commit: Commit,
        *,
        input_records: int,
        output_records: int,
        duration_ms: float,
        operators: Sequence[OperatorMetrics] = (),
    ) -> None:
        """Count a committed batch; `operators` is what each did in it."""
        with self._lock:
            self._first_commit = self._first_commit or commit
            self._last_commit = commit
            committed_at, before = self._clock(), self._committed_at
            self._committed_at = committed_at
            # From one commit to the next: the time in which the batch's input has come.
            cycle_ms = duration_ms if before is None else max(duration_ms, 1000 * (committed_at - before))
            old, first = self._metrics, self._metrics.batches == 0
            newest = {
                "input_records_per_second": 1000 * input_records / max(cycle_ms, 1.0),
                "processed_records_per_second": 1000 * input_records / max(duration_ms, 1.0),
                "batch_duration_ms": duration_ms,
                "busy_ratio": duration_ms / max(cycle_ms, duration_ms, 1.0),
            }
            smoothed = {
                name: value if first else _smoothed(getattr(old, name), value) for name, value in newest.items()
            }
            with_totals = added_up(old.operators, operators, cycle_ms)
            self._metrics = old.model_copy(
                update={
                    **smoothed,
                    "batches": old.batches + 1,
                    "input_records": old.input_records + input_records,
                    "output_records": old.output_records + output_records,
                    "operators": with_totals,
                    "state_bytes": state_bytes_of(with_totals) or old.state_bytes,
                }
            )

    def placed(self, placement: Placement) -> None:
        """Tell how often subtasks have run where their state was, and how often not."""
        counts = {
            "subtask_runs": placement.runs,
            "subtask_runs_moved": placement.moved,
            "subtask_runs_rebuilt": placement.rebuilt,
        }
        with self._lock:
            self._metrics = self._metrics.model_copy(update=counts)

    def sources_are_behind(self, records: int | None) -> None:
        """Tell by how many records the last batch was behind its sources."""
        with self._lock:
            if self._metrics.pending_records != records:
                self._metrics = self._metrics.model_copy(update={"pending_records": records})

    def restarts(self, strategy: RestartStrategy | None, history: FailureHistory, last: Failure | None = None) -> None:
        """Tell by which strategy the job is started again, and after which failures it was."""
        with self._lock:
            known = last or self._metrics.last_failure
            self._metrics = self._metrics.model_copy(
                update={"restart": strategy, "failures": history, "last_failure": known}
            )

    def store_seen(self, away_since_ms: int | None) -> None:
        """Tell since when the object store has not answered; None: it does."""
        with self._lock:
            self._metrics = self._metrics.model_copy(update={"store_away_since_ms": away_since_ms})

    def waits_for_input(self, waits: bool) -> None:
        """Tell whether the query has looked for input and found none."""
        with self._lock:
            if self._metrics.waits_for_input != waits:
                self._metrics = self._metrics.model_copy(update={"waits_for_input": waits})

    def state_measured(self, state_bytes: int) -> None:
        with self._lock:
            self._metrics = self._metrics.model_copy(update={"state_bytes": state_bytes})

    def answer(self, result: CommandResult) -> None:
        """Keep a command's result until the control plane no longer asks for it."""
        with self._lock:
            self._results[result.command_id] = result

    def acknowledge(self, results: Iterable[CommandResult], still_asked: Iterable[str]) -> None:
        """Forget results that were sent and whose commands the answer no longer names."""
        asked = set(still_asked)
        with self._lock:
            for result in results:
                if result.command_id not in asked:
                    self._results.pop(result.command_id, None)

    def heartbeat(self) -> Heartbeat:
        with self._lock:
            metrics = self._metrics
            if metrics.waits_for_input and self._committed_at is not None:
                idle_ms = 1000 * (self._clock() - self._committed_at)
                if idle_ms > IDLE_MS:  # the last batch says nothing any more
                    quiet = {"input_records_per_second": 0.0, "busy_ratio": 0.0, "pending_records": 0}
                    metrics = metrics.model_copy(update=quiet)
            return Heartbeat(
                state=self._state,
                first_commit=self._first_commit,
                last_commit=self._last_commit,
                restored_at_ms=self._restored_at_ms,
                metrics=metrics,
                results=list(self._results.values()),
                failure=self._failure,
            )


def _smoothed(old: float, new: float) -> float:
    return old + _SMOOTHING * (new - old)
