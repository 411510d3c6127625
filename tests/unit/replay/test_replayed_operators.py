"""A committed batch gives the same state and output when it runs again, and a changed program shows its differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor
from keyscale.jobs.errors import UserFunctionError
from keyscale.jobs.runtime.errors import RestoreRefusedError
from keyscale.replay.errors import ReplayKeyError
from keyscale.replay.replayed_operators import ReplayedOperators
from keyscale.state.inspection.state_point import BatchNotStoredError
from tests.support.rehearsal.keyed_rehearsal import OPERATOR, SINK, declared_rehearsal, keyed_rehearsal
from tests.support.rehearsal.rehearsed_replay import replay

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rehearsal.rehearsal import Rehearsal

OUTPUT = pa.schema([("key", pa.string()), ("total", pa.int64())])
BATCHES = [[("ada", 1), ("bob", 2)], [("ada", 3), ("eve", 4)], [("bob", 5), ("ada", 6)], [("ada", 7)]]


class Count(KeyedProcessFunction):
    """Counts records, and remembers in each subtask how many records it has seen; a timer forgets a key."""

    step = 1
    fails_at: int | None = None

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64()))
        self.seen = context.get_operator_list_state(ListStateDescriptor("seen", pa.int64()))

    def process_element(self, row: Any, context: Any) -> Any:
        if row.at == self.fails_at:
            raise ValueError(f"no {row.at}")
        total = (self.total.value() or 0) + self.step
        self.total.update(total)
        self.seen.update([sum(self.seen.get()) + 1])
        context.timer_service().register_event_time_timer(row.at + 2)
        yield row.key, total

    def on_timer(self, timestamp: int, context: Any) -> Any:
        if context.current_key == "eve":
            self.total.clear()
            yield "forgotten", timestamp


class ByTwo(Count):
    step = 2


class Failing(Count):
    fails_at = 6


@pytest.fixture
def job(tmp_path: Path) -> Rehearsal:
    return counting(tmp_path, Count())


def counting(directory: Path, function: Count) -> Rehearsal:
    return keyed_rehearsal(directory, function, OUTPUT, BATCHES)


def files_of(job: Rehearsal) -> dict[str, bytes]:
    root = job.directory / "store"
    return {str(file): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def test_each_stored_batch_gives_what_it_has_committed(job: Rehearsal, tmp_path: Path) -> None:
    job.start(2)
    job.run_batches(1)
    job.checkpoint()
    job.run_batches(1)
    job.start(3)  # operator state is redistributed
    job.run_batches(1)
    job.checkpoint()
    job.run_batches(1)
    job.fire_timers()
    before = files_of(job)
    outputs = []
    for batch_id in range(1, 5):
        replayed = replay(job, tmp_path / f"replay-{batch_id}", batch_id)
        assert (batch_id, replayed.operators.differences) == (batch_id, [])
        assert sum(replayed.operators.output_records.values()) == replayed.batch.committed.output_records
        outputs += replayed.outputs[SINK]
    assert outputs == job.output(SINK)[2:]
    assert {"key": "forgotten", "total": 6} in outputs, "no timer has fired"
    assert files_of(job) == before


def test_another_program_shows_its_differences_from_the_committed_state(job: Rehearsal, tmp_path: Path) -> None:
    job.start(2)
    job.run_batches(2)
    program = counting(tmp_path / "other", ByTwo()).topology
    replayed = replay(job, tmp_path / "replay", 1, topology=program)
    shown = {(each.state, each.entry["key"]["key"]): each[3:] for each in replayed.operators.differences}
    assert shown == {("total", "ada"): (2, 3), ("total", "eve"): (1, 2)}
    assert replayed.outputs[SINK] == [{"key": "ada", "total": 3}, {"key": "eve", "total": 2}]


def test_the_batch_that_fails_runs_up_to_its_exception(tmp_path: Path) -> None:
    job = counting(tmp_path, Failing())
    job.start(2)
    job.run_batches(2)
    with pytest.raises(UserFunctionError):
        job.run_batches(1)
    with pytest.raises(UserFunctionError, match="key 'ada'") as failure:
        replay(job, tmp_path / "replay")
    assert isinstance(failure.value.__context__, ValueError)
    assert failure.value.__context__.__traceback__ is not None
    fixed = replay(job, tmp_path / "fixed", topology=counting(tmp_path / "other", Count()).topology)
    assert (fixed.batch.batch_id, fixed.batch.committed, fixed.operators.differences) == (2, None, [])
    assert fixed.outputs[SINK] == [{"key": "bob", "total": 2}, {"key": "ada", "total": 3}]


def test_a_single_key_runs_alone(job: Rehearsal, tmp_path: Path) -> None:
    job.start(2)
    job.run_batches(4)
    replayed = replay(job, tmp_path / "replay", 2, key="bob")
    assert replayed.outputs[SINK] == [{"key": "bob", "total": 2}]
    assert (replayed.operators.differences, replayed.operators.key_records) == ([], 1)
    assert replay(job, tmp_path / "none", 2, key="nobody").operators.key_records == 0
    program = counting(tmp_path / "other", ByTwo()).topology
    (difference,) = replay(job, tmp_path / "two", 2, key="bob", topology=program).operators.differences
    assert difference[2:] == ({"key": {"key": "bob"}}, 2, 3)


def test_the_state_of_other_keys_and_their_timers_are_away_from_a_single_key(job: Rehearsal, tmp_path: Path) -> None:
    job.start(1)
    job.run_batches(4)
    job.fire_timers()  # eve's timer
    assert replay(job, tmp_path / "all", 4).outputs[SINK] == [{"key": "forgotten", "total": 6}]
    assert replay(job, tmp_path / "ada", 4, key="ada").outputs[SINK] == []


def test_a_key_needs_an_operator(job: Rehearsal, tmp_path: Path) -> None:
    job.start(1)
    job.run_batches(1)
    with pytest.raises(ReplayKeyError, match=f"its operators are: {OPERATOR}"):
        replay(job, tmp_path / "replay", 0, key="ada", operator="other")


def test_a_batch_that_was_cleaned_up_names_the_oldest_one_that_is_stored(job: Rehearsal, tmp_path: Path) -> None:
    job.start(1)
    job.run_batches(2)
    job.checkpoint()
    job.run_batches(1)
    for file in sorted((job.directory / "store" / "rehearsed" / "log").iterdir())[:4]:
        file.unlink()
    with pytest.raises(BatchNotStoredError, match="the oldest batch with a stored state is 2"):
        replay(job, tmp_path / "replay", 1)
    assert replay(job, tmp_path / "replay", 2).operators.differences == []


@pytest.mark.parametrize("batch_id", [-1, 3])
def test_a_batch_that_the_job_has_not_planned_is_unknown(job: Rehearsal, tmp_path: Path, batch_id: int) -> None:
    job.start(1)
    job.run_batches(2)
    with pytest.raises(BatchNotStoredError, match="the batch after the last commit is 2"):
        replay(job, tmp_path / "replay", batch_id)


def test_a_job_that_has_never_run_has_no_batch(job: Rehearsal, tmp_path: Path) -> None:
    (job.directory / "store").mkdir()
    with pytest.raises(BatchNotStoredError, match="has never run"):
        replay(job, tmp_path / "replay", 0)


def test_a_program_with_other_keys_is_refused(job: Rehearsal, tmp_path: Path) -> None:
    job.start(1)
    job.run_batches(1)
    program = declared_rehearsal(tmp_path / "other", keyed_by_time, BATCHES).topology
    with pytest.raises(RestoreRefusedError, match="was keyed by key"):
        replay(job, tmp_path / "replay", 0, topology=program)


def keyed_by_time(keyed: Any) -> Any:
    return keyed._stream.key_by("at").process(Count(), output=OUTPUT)


def test_the_replay_of_a_batch_needs_its_changelog_only_for_the_comparison(
    job: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the changes of another batch, the comparison finds differences."""
    job.start(1)
    job.run_batches(3)
    committed = ReplayedOperators._committed
    other = replay(job, tmp_path / "other", 1).batch.committed
    assert other is not None
    monkeypatch.setattr(ReplayedOperators, "_committed", lambda _, uid, index: other.operators[uid][index])
    assert replay(job, tmp_path / "replay", 2).operators.differences
    monkeypatch.setattr(ReplayedOperators, "_committed", committed)
    assert not replay(job, tmp_path / "again", 2).operators.differences
