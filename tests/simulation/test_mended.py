"""Defects that a simulation has found, each with the shortest history that shows it."""

from __future__ import annotations

from tests.simulation.environment import play
from tests.simulation.history import Event, History
from tests.simulation.output_guards import BACK_AND_FORWARD


def test_the_log_since_the_checkpoint_that_an_attempt_began_with_is_deleted_once_it_has_its_own() -> None:
    events = (
        Event("records", 0.0, {"keys": [0, 1, 2, 3, 4, 5]}),
        Event("start", 1.0, {"parallelism": 2, "host": "a"}),
        Event("records", 18.0, {"keys": [0, 1, 2, 3, 4, 5]}),
        Event("kill_at", 0.0, {"moment": "batch.changelog_written", "nth": 1}),
        Event("idle", 0.0, {"seconds": 10.0}),
    )
    assert play(History(5, events)).findings == []


def test_a_driver_whose_clock_jumps_ahead_deletes_no_file_of_its_checkpoint_in_progress() -> None:
    events = (
        Event("records", 0.0, {"keys": [3, 5, 4, 0, 1, 2, 0, 4, 4, 2, 5, 0]}),
        Event("start", 1.0, {"parallelism": 4, "host": "b"}),
        Event("freeze_at", 0.078, {"moment": "batch.committed", "nth": 3}),
        Event("clock_jump", 22.601, {"host": "b", "ms": 3_600_000}),
    )
    assert play(History(1, events)).findings == []


def test_a_subtask_without_operator_state_takes_none_over_from_a_checkpoint_of_its_own_attempt() -> None:
    events = (
        Event("timed"),
        Event("records", 0.0, {"keys": [5, 4, 0, 1, 2, 0, 4, 4]}),
        Event("start", 1.0, {"parallelism": 3, "host": "c"}),
    )
    assert play(History(1, events)).findings == []


def test_an_overtaken_driver_discards_the_output_of_a_batch_of_time_that_it_cannot_commit() -> None:
    events = (
        Event("timed"),
        Event("records", 0.0, {"keys": [4, 0, 0]}),
        Event("start", 1.0, {"parallelism": 4, "host": "a"}),
        Event("keeper", 0.0, {"seconds": 3.0}),
        Event("kill_at", 0.157, {"moment": "batch.planned", "nth": 2}),
        Event("records", 0.0, {"keys": [4, 1, 1]}),
        Event("start", 14.0, {"parallelism": 2, "host": "c", "hint": "latest", "kills": True}),
    )
    assert play(History(2, events)).findings == []


def test_a_driver_that_sleeps_in_a_transaction_holds_up_no_publication_of_an_earlier_attempts_batch() -> None:
    events = (
        Event("sink", 0.0, {"kind": "appended table"}),
        Event("commit_faults", 0.0, {"refused": 0.2, "lost": 0.2, "unanswered": 0.0, "late": 0.05}),
        Event("records", 0.0, {"keys": [3, 3, 2]}),
        Event("start", 1.0, {"parallelism": 4, "host": "c", "hint": "latest"}),
        Event("keeper", 0.0, {"seconds": 10.0}),
        Event("records", 0.866, {"keys": [3, 1]}),
        Event("idle", 57.658, {"seconds": 9.0}),
        Event("start", 44.411, {"parallelism": 1, "host": "b", "hint": "latest", "kills": False}),
        Event("records", 0.5, {"keys": [5, 0, 2, 4, 4, 4, 5, 1, 1, 4, 1, 2, 3, 5]}),
        Event("freeze_at", 55.503, {"moment": "sink.effect.before", "nth": 8}),
        Event("start", 4.0, {"parallelism": 4, "host": "c", "hint": "none", "kills": False}),
        Event("records", 47.246, {"keys": [0, 0, 2, 3, 4, 2]}),
    )
    assert play(History(222, events)).findings == []


def test_a_job_that_went_back_refuses_a_snapshot_of_the_history_that_it_has_left_and_goes_on() -> None:
    outcome = play(BACK_AND_FORWARD)
    assert outcome.findings == []
    assert outcome.reached["a snapshot whose rows were taken back was refused"] == 1
