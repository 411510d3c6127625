"""A job that is rescaled without a stop writes what it writes undisturbed, batch by batch."""

from __future__ import annotations

import random
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.errors import KeyscaleError
from keyscale.identifiers import JobId
from keyscale.jobs.functions.process_function import KeyedProcessFunction
from keyscale.jobs.protocol.messages import Command, ReservedAttempt
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.driver import batch_loop, execution, live_rescale
from keyscale.jobs.runtime.driver.live_rescale import LiveRescale, next_context
from keyscale.jobs.runtime.errors import (
    RescaleNotLiveError,
    RescaleTimeoutError,
    RescaleWithdrawnError,
    RunEndedError,
)
from keyscale.jobs.runtime.executor.worker import open_stores
from keyscale.state.doors.commits import FencedError
from keyscale.state.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor
from keyscale.state.layout import Layout
from keyscale.state.log import commit_log
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.vocabulary import CommandKind, DriverState
from tests.support.rehearsal.keyed_rehearsal import SINK, keyed_rehearsal, lose_the_host
from tests.support.rehearsal.rehearsal import JOB
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keyscale.jobs.functions.process_function import OnTimerContext, ProcessContext, Row, RuntimeContext
    from tests.support.rehearsal.rehearsal import Rehearsal

OUTPUT = pa.schema([("key", pa.string()), ("kind", pa.string()), ("number", pa.int64())])
BATCHES = 18
DELAY_MS = 3
Rows = list[tuple[str, str, int]]


class Counts(KeyedProcessFunction):
    """Emits a count per record, tells it again by a timer, and keeps all record times in operator state."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))
        self.seen = context.get_operator_list_state(ListStateDescriptor("seen", pa.int64()))
        self.united = context.get_union_list_state(ListStateDescriptor("united", pa.int64()))
        if context.is_restored:
            shares = [number for number in self.united.get() if number % context.parallelism == context.subtask_index]
            self.united.update(shares)

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[tuple[str, str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.seen.add(record.at)
        self.united.add(record.at)
        context.timer_service().register_event_time_timer(record.at + DELAY_MS)
        yield record.key, "count", count

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[tuple[str, str, int]]:
        yield context.current_key, "timer", timestamp
        yield from ((str(number), "seen", number) for number in self.seen.get())
        yield from ((str(number), "united", number) for number in self.united.get())
        self.seen.clear()
        self.united.clear()


CRASHES = {
    "rescale.prepared": live_rescale,
    "rescale.held": live_rescale,
    "log.appending": commit_log,
    "log.appended": commit_log,
    "rescale.opened": live_rescale,
    "batch.planned": batch_loop,
    "batch.ran": batch_loop,
    "batch.committed": batch_loop,
}


class Killed(BaseException):
    """In place of the end of the process."""


def batches() -> list[list[tuple[str, int]]]:
    chance = random.Random(7)
    return [
        [(chance.choice("abcdefghij"), 4 * batch + chance.randrange(4)) for _ in range(9)] for batch in range(BATCHES)
    ]


@pytest.fixture
def job(tmp_path: Path) -> Rehearsal:
    return keyed_rehearsal(tmp_path / "job", Counts(), OUTPUT, batches())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    job = keyed_rehearsal(tmp_path_factory.mktemp("undisturbed"), Counts(), OUTPUT, batches())
    job.start(1)
    job.drain()
    rows = rows_of(job)
    assert {kind for _, kind, _ in rows} == {"count", "timer", "seen", "united"}
    return rows


def rows_of(job: Rehearsal) -> Rows:
    return sorted((row["key"], row["kind"], row["number"]) for row in job.output(SINK))


def finish(job: Rehearsal) -> None:
    """Has one subtask process the rest, so that its timers tell all that operator state still has."""
    job.rescale(1)
    job.drain()


def kill_at(patch: pytest.MonkeyPatch, module: Any, moment: str) -> None:
    def failpoint(name: str) -> None:
        if name == moment:
            raise Killed(moment)

    patch.setattr(module, "failpoint", failpoint)


@pytest.mark.parametrize("seed", short_form(list(range(12)), [0]))
def test_every_record_timer_and_element_has_its_effect_once_through_random_rescales(
    job: Rehearsal, undisturbed: Rows, seed: int
) -> None:
    chance = random.Random(seed)
    job.start(2)
    for parallelism in (4, 1, 3, chance.randint(1, 6)):
        job.run_batches(chance.randint(0, 1))
        if chance.random() < 0.5:
            job.checkpoint()
        job.rescale(parallelism, meanwhile=chance.randint(0, 1))
        if chance.random() < 0.3:
            job.run_batches(1)
            lose_the_host(job)
        if chance.random() < 0.3:
            job.checkpoint()
    finish(job)
    assert rows_of(job) == undisturbed
    assert job.attempt == 6


@pytest.mark.parametrize("moment", short_form(list(CRASHES), list(CRASHES)[1::2]))
@pytest.mark.parametrize("has_checkpoint", short_form([True, False], [True]))
def test_a_driver_that_dies_at_any_step_leaves_a_job_that_another_driver_continues(
    job: Rehearsal,
    undisturbed: Rows,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    *,
    has_checkpoint: bool,
) -> None:
    module = CRASHES[moment]
    job.start(2)
    job.run_batches(3)
    if has_checkpoint:
        job.checkpoint()
    job.run_batches(1)
    if module is batch_loop:
        job.rescale(4)
    with monkeypatch.context() as patch:
        kill_at(patch, module, moment)
        with pytest.raises((Killed, RunEndedError)):
            job.run_batches(1) if module is batch_loop else job.rescale(4)
    job.attempt = 2  # both numbers are reserved, whether the second one was opened or not
    job.start(3)
    job.run_batches(1)
    finish(job)
    assert rows_of(job) == undisturbed


@pytest.mark.parametrize("meanwhile", [0, 2])
def test_no_store_is_rebuilt_after_the_switch(job: Rehearsal, meanwhile: int) -> None:
    job.start(2)
    job.run_batches(2)
    job.checkpoint()
    job.rescale(4, meanwhile=meanwhile)
    job.run_batches(1)
    metrics = job._execution.context.status.heartbeat().metrics
    assert (metrics.subtask_runs, metrics.subtask_runs_rebuilt) == (4, 0)
    assert {store.store.spec.attempt for store in open_stores()._idle.values()} == {2}, "old stores are let go"


def test_a_driver_that_was_replaced_meanwhile_cannot_open_its_next_attempt(job: Rehearsal, undisturbed: Rows) -> None:
    job.start(2)
    job.run_batches(3)
    other = replace(job, attempt=4)
    overtaken = job._execution
    with pytest.raises(FencedError, match="taken by another attempt"):
        job.rescale(4, before_switch=lambda: other.start(3))
    outcome = overtaken.context.outcome_box.outcome
    assert outcome is not None
    assert outcome.state is DriverState.FENCED
    finish(other)
    assert rows_of(other) == undisturbed


def test_a_failed_preparation_leaves_the_job_as_it_is(
    job: Rehearsal, undisturbed: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(2)
    job.run_batches(3)
    with monkeypatch.context() as patch:
        patch.setattr(live_rescale.LiveRescale, "_prepare", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            job.rescale(4)
    assert job._execution.context.outcome_box.outcome is None
    job.run_batches(2)
    job.checkpoint()
    job.attempt += 1  # the number stays reserved
    job.rescale(3)
    finish(job)
    assert rows_of(job) == undisturbed


def test_the_counts_of_the_next_attempt_begin_anew_and_its_pause_is_known(job: Rehearsal) -> None:
    job.start(2)
    job.run_batches(3)
    before = job._execution.context.status.heartbeat()
    job.rescale(4)
    status = job._execution.context.status
    assert (status.heartbeat().attempt, status.commits, status.heartbeat().first_commit) == (2, 0, None)
    job.run_batches(1)
    job._execution._verify()
    beat = status.heartbeat()
    assert (before.attempt, before.metrics.batches, beat.metrics.batches) == (1, 3, 1)
    assert beat.metrics.counters is not None
    assert beat.metrics.counters.input_records == 36, "the job's own counts go on"
    assert beat.rescale is not None
    assert (beat.rescale.from_attempt, beat.rescale.to_attempt) == (1, 2)
    assert beat.rescale.pause_ms is not None
    assert beat.rescale.committed_at_ms == beat.first_commit.at_ms if beat.first_commit else None
    assert [(result.command_id, result.status) for result in beat.results] == [("rescale", "COMPLETED")]


def test_a_rescale_is_answered_after_the_first_commit_or_when_there_is_no_input(job: Rehearsal) -> None:
    job.start(2)
    job.run_batches(1)
    job.rescale(4)
    status = job._execution.context.status
    job._execution._verify()
    assert status.heartbeat().results == []
    status.waits_for_input(True)
    for _ in range(2):
        job._execution._verify()
        assert [(result.command_id, result.status) for result in status.heartbeat().results] == [
            ("rescale", "COMPLETED")
        ]


def test_an_attempt_that_dies_right_after_the_switch_leaves_the_counters_and_its_checkpoint(
    job: Rehearsal, undisturbed: Rows
) -> None:
    job.start(2)
    job.run_batches(3)
    job.rescale(4)
    counted = CommitLog(job._execution.context.store, Layout(JobId(JOB))).newest_counters()
    assert (counted.input_records, counted.output_records) == (27, job.counters.output_records)
    job.checkpoint()
    job.run_batches(1)
    job.start(1)
    job.drain()
    assert rows_of(job) == undisturbed


def test_no_batch_follows_an_opening_that_the_store_has_not_answered(
    job: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("no answer")

    job.start(2)
    job.run_batches(3)
    running, loop = job._execution, job._loop
    with monkeypatch.context() as patch:
        patch.setattr(execution, "open_next_attempt", lost)
        with pytest.raises(StoreUnavailableError):
            job.rescale(4)
    outcome = running.context.outcome_box.outcome
    assert outcome is not None
    assert (outcome.state, running.has_opened) == (DriverState.FAILED, False)
    with pytest.raises(RunEndedError), loop.paused(0.0):
        pass


@pytest.mark.parametrize("changelogs", [live_rescale._CHANGELOGS_MAX, live_rescale._CHANGELOGS_MAX + 1])
def test_stores_are_prepared_from_a_new_checkpoint_if_many_changelogs_lead_to_them(changelogs: int) -> None:
    steps: list[str] = []
    committed = SimpleNamespace(changelogs_max=changelogs, batch_id=3)
    loop = SimpleNamespace(committed=committed, paused=lambda _: nullcontext(steps.append("rebase")))
    context = SimpleNamespace(timeout_ms=60_000)
    checkpoints = SimpleNamespace(context=context, take=lambda: steps.append("checkpoint"))
    following = SimpleNamespace(
        prepare=lambda given: steps.append(f"prepare {given.batch_id}"), rehearse=lambda: steps.append("rehearse")
    )
    running: Any = SimpleNamespace(context=SimpleNamespace(withdrawn=set()))
    given: list[Any] = [running, loop, checkpoints, Command(id="c", kind=CommandKind.RESCALE, limit_ms=60_000)]
    LiveRescale(*given)._prepare(cast("Any", following))
    checkpoint = ["checkpoint"] if changelogs > live_rescale._CHANGELOGS_MAX else []
    assert steps == [*checkpoint, "rebase", "prepare 3", "rehearse"], "a later rebase would lead past the stores"


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"parallelism": 9}, "Spark runs 8 subtasks at once"),
    ({}, {"parameters": {"colour": "blue"}}, "changes other settings, too: parameters.colour"),
    ({"attempt": 1}, {}, "does not follow attempt 1"),
    ({"job_id": "other"}, {}, "for another job"),
]


def test_what_the_running_driver_cannot_do_is_refused(job: Rehearsal) -> None:
    job.start(2)
    context = job._execution.context
    context.status.has_slots(8)
    assert next_context(context, command_to(context, 2)).assignment.spec.parallelism == 8
    present = context.assignment
    for changes, settings, reason in REFUSED:
        spec = present.spec.model_copy(update=settings)
        given = present.model_copy(update={"attempt": 2, **changes, "spec": spec})
        reserved = ReservedAttempt(token="token", assignment=given)  # noqa: S106
        with pytest.raises(RescaleNotLiveError, match=reason):
            next_context(context, Command(id="c", kind=CommandKind.RESCALE, next_attempt=reserved))


def command_to(context: Any, attempt: int) -> Command:
    spec = context.assignment.spec.model_copy(update={"parallelism": 8})
    given = context.assignment.model_copy(update={"attempt": attempt, "spec": spec})
    reserved = ReservedAttempt(token="token", assignment=given)  # noqa: S106
    return Command(id="c", kind=CommandKind.RESCALE, next_attempt=reserved, limit_ms=60_000)


@pytest.mark.parametrize("cause", ["withdrawn", "late"])
def test_a_rescale_that_is_withdrawn_or_late_is_given_up_until_the_last_moment(
    job: Rehearsal, undisturbed: Rows, cause: str
) -> None:
    job.start(2)
    job.run_batches(3)
    context = job._execution.context
    context.status.has_slots(8)
    rescale = LiveRescale(job._execution, job._loop, job._checkpoints, command_to(context, 2))

    def failpoint(moment: str) -> None:
        if moment == "rescale.held":
            if cause == "withdrawn":
                context.withdrawn.add("c")
            else:
                rescale._deadline = 0.0

    expected = RescaleWithdrawnError if cause == "withdrawn" else RescaleTimeoutError
    with job._without_spark(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_rescale, "failpoint", failpoint)
        with pytest.raises(expected):
            rescale.run()
    assert context.outcome_box.outcome is None
    assert context.status.heartbeat().attempt == 1
    finish(job)
    assert rows_of(job) == undisturbed


@pytest.mark.parametrize(("limit_ms", "expected"), [(60_000, "60 s"), (1_000, "1 s"), (None, "60 s")])
def test_a_preparation_delays_checkpoints_no_longer_than_a_checkpoint_may_take(
    job: Rehearsal, limit_ms: int | None, expected: str
) -> None:
    job.start(2)
    context = job._execution.context
    command = command_to(context, 2).model_copy(update={"limit_ms": limit_ms})
    rescale = LiveRescale(job._execution, job._loop, job._checkpoints, command)
    rescale._deadline = 0.0
    context.status.has_slots(8)
    with pytest.raises(RescaleTimeoutError, match=f"not ready in {expected}$"):
        rescale.run()


@pytest.mark.parametrize("moment", [None, "rescale.prepared"], ids=["at first", "when it is prepared"])
def test_a_batch_that_outlasts_the_limit_lets_another_driver_rescale(job: Rehearsal, moment: str | None) -> None:
    job.start(2)
    job.run_batches(1)
    context = job._execution.context
    context.status.has_slots(8)
    command = command_to(context, 2).model_copy(update={"limit_ms": 10})
    rescale = LiveRescale(job._execution, job._loop, job._checkpoints, command)
    begin_batch = job._loop._lock.acquire
    if moment is None:
        begin_batch()
    else:
        rescale._deadline = time.monotonic() + 60

    def failpoint(name: str) -> None:
        if name == moment:
            begin_batch()
            rescale._deadline = time.monotonic()

    with job._without_spark(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_rescale, "failpoint", failpoint)
        patch.setattr(rescale, "_check", lambda: None)
        with pytest.raises(RescaleTimeoutError, match="no batch ended in 10 ms"):
            rescale.run()
    job._loop._lock.release()
    assert context.outcome_box.outcome is None


def keeps_starts(committed: CommittedState, *_: Any) -> CommittedState:
    return committed


def keeps_position(committed: CommittedState, specs: Any, _: int) -> CommittedState:
    return DIVIDED(committed, specs, committed.log_position)


def keeps_timers(committed: CommittedState, specs: Any, position: int) -> CommittedState:
    return replace(DIVIDED(committed, specs, position), timers=committed.timers)


DIVIDED = CommittedState.divided


@pytest.mark.parametrize("divided", [keeps_starts, keeps_position, keeps_timers])
def test_a_part_of_the_committed_state_that_stays_that_of_the_attempt_before_is_found(
    job: Rehearsal, undisturbed: Rows, monkeypatch: pytest.MonkeyPatch, divided: Callable[..., CommittedState]
) -> None:
    monkeypatch.setattr(CommittedState, "divided", divided)
    job.start(2)
    job.run_batches(3)
    found: Any = None
    try:
        job.rescale(4)
        job.checkpoint()
        job.run_batches(1)
        job.start(1)
        job.drain()
        found = rows_of(job)
    except (KeyscaleError, ValueError, IndexError, KeyError) as error:
        found = error
    assert found != undisturbed, found


@pytest.mark.parametrize(
    ("cause", "expected"),
    [(None, ConnectionError), ("late", RescaleTimeoutError), ("withdrawn", RescaleWithdrawnError)],
)
def test_a_preparation_that_is_late_is_cancelled_and_says_so(cause: str | None, expected: type[Exception]) -> None:
    made: list[str] = []
    cancelled = threading.Event()

    def cancel(tag: str) -> None:
        made.append(f"cancel {tag}")
        cancelled.set()
        raise ConnectionError("Spark has ended")

    spark_context = SimpleNamespace(
        addJobTag=lambda tag: made.append(f"add {tag}"),
        removeJobTag=lambda tag: made.append(f"remove {tag}"),
        cancelJobsWithTag=cancel,
    )
    context = SimpleNamespace(
        spark=SimpleNamespace(sparkContext=spark_context), assignment=SimpleNamespace(attempt=4), withdrawn={"other"}
    )
    checkpoints = SimpleNamespace(context=SimpleNamespace(timeout_ms=60_000))
    command = Command(id="c", kind=CommandKind.RESCALE, limit_ms=0 if cause == "late" else 50_000)
    rescale = LiveRescale(
        cast("Any", SimpleNamespace(context=context)), cast("Any", None), cast("Any", checkpoints), command
    )
    if cause == "withdrawn":
        context.withdrawn.add("c")

    def fail() -> None:
        with rescale._cancelled_in_time():
            if cause == "late":
                assert cancelled.wait(30)
            raise ConnectionError("a job failed")

    with pytest.raises(expected):
        fail()
    assert sorted(made) == sorted(
        ["add rescale-4", *(["cancel rescale-4"] if cause == "late" else []), "remove rescale-4"]
    )


def test_a_command_that_names_no_attempt_is_refused() -> None:
    with pytest.raises(RescaleNotLiveError, match="names no attempt"):
        next_context(cast("Any", None), Command(id="c", kind=CommandKind.RESCALE))
