"""The guards of timers, operator state and sinks with transactions, each with what the auditor finds without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keyscale.jobs.runtime.batch.runner import BatchRunner
from keyscale.jobs.runtime.driver import resume_plan
from keyscale.jobs.runtime.driver.batch_loop import BatchLoop
from keyscale.jobs.sinks import kafka_output, postgres
from keyscale.jobs.sinks.kafka import KafkaSink
from keyscale.jobs.sinks.kafka_output import KafkaOutput
from keyscale.jobs.sinks.postgres import PostgresSink
from keyscale.jobs.sinks.published import Step
from keyscale.state.keyed.timer_queue import TimerQueue
from keyscale.state.operator_state import operator_files
from keyscale.state.operator_state.operator_files import OperatorStatePlan
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.subtask import store
from tests.simulation.generator import SINK_MOMENT, data_plane_scenes
from tests.simulation.guards import WRONG_ROWS, Guard, publish_and_commit
from tests.simulation.history import Event, History

DOUBTFUL = {"refused": 0.1, "lost": 0.1, "unanswered": 0.2, "late": 0.1}
TABLES = ("appended table", "upserted table")

_redistribute = operator_files.redistribute


def _redistribute_the_first(snapshots: Any, parallelism: int, *, claimed: bool = True) -> Any:
    return [_redistribute(snapshots, parallelism, claimed=claimed)[0]] * parallelism


_rebased = RestorePlan.rebased


def _rebased_on_all(plan: RestorePlan, snapshots: Any, index: int, batch_id: Any) -> RestorePlan:
    rebased = _rebased(plan, snapshots, index, batch_id)
    if not plan.operator_state.inherited:
        return rebased
    files = tuple(each.operator_state_file for each in snapshots)
    return replace(rebased, operator_state=OperatorStatePlan(files, inherited=True))


def _first_checkpoint(_: int) -> History:
    events = (
        Event("timed"),
        Event("records", 0.0, {"keys": [5, 4, 0, 1, 2, 0, 4, 4]}),
        Event("start", 1.0, {"parallelism": 3, "host": "c"}),
    )
    return History(1, events)


BACK_AND_FORWARD = History(
    1,
    (
        Event("records", 0.0, {"keys": [3, 5, 4]}),
        Event("start", 1.0, {"parallelism": 2, "host": "a"}),
        Event("command", 9.0, {"what": "SAVEPOINT"}),
        Event("records", 5.0, {"keys": [0, 1, 2]}),
        Event("command", 9.0, {"what": "SAVEPOINT"}),
        Event("rewind", 9.0, {"parallelism": 1, "host": "b", "which": 0, "claim": False}),
        Event("records", 9.0, {"keys": [4, 4]}),
        Event("go_forward", 9.0, {"host": "a"}),
        Event("start", 9.0, {"parallelism": 2, "host": "b"}),
        Event("records", 9.0, {"keys": [2, 5, 0]}),
    ),
)
"""A job goes back to its first savepoint, and is then told to go to the second one."""

OUTPUT = (
    Guard(
        "A restored subtask reads the timers of all its key groups.",
        ((TimerQueue, "_stored_groups", lambda _: []),),
        WRONG_ROWS,
        0,
        history=data_plane_scenes("crash", is_timed=True),
    ),
    Guard(
        "A subtask takes its own share of operator state over.",
        ((operator_files, "redistribute", _redistribute_the_first),),
        WRONG_ROWS,
        0,
        history=data_plane_scenes("crash", is_timed=True),
    ),
    Guard(
        "A subtask without operator state keeps none.",
        ((RestorePlan, "rebased", _rebased_on_all),),
        WRONG_ROWS,
        0,
        history=_first_checkpoint,
    ),
    Guard(
        "A batch stores the operator state that it has changed.",
        ((store, "store_operator_state", lambda *_: None),),
        WRONG_ROWS,
        0,
        history=data_plane_scenes("crash", is_timed=True),
    ),
    Guard(
        "An overtaken driver discards what it cannot commit.",
        ((BatchRunner, "discard", lambda *_: None),),
        "are left staged",
        2,
        history=data_plane_scenes("overlap", "late", "crash", sinks=("files",), is_timed=True),
    ),
    Guard(
        "A batch is written to a topic after its commit.",
        ((BatchLoop, "_commit", publish_and_commit),),
        "that were not committed",
        1,
        history=data_plane_scenes("crash", moments=("sink.published", "log.appending"), sinks=("kafka",)),
    ),
    Guard(
        "A share that its marker covers is not written again.",
        ((kafka_output, "next_step", lambda *_: Step.APPLY),),
        "more often than|" + WRONG_ROWS,
        0,
        history=data_plane_scenes("crash", moments=(SINK_MOMENT,), sinks=("kafka",), faults=DOUBTFUL),
    ),
    Guard(
        "A new attempt takes all shares over.",
        ((KafkaSink, "_take_over_shares", lambda *_: None),),
        WRONG_ROWS,
        0,
        history=data_plane_scenes("go back", "sleeper", moments=(SINK_MOMENT,), sinks=("kafka",)),
        is_dear=True,
    ),
    Guard(
        "A topic's producer opens again after any doubt.",
        ((KafkaOutput, "close", lambda _: None),),
        "more often than",
        0,
        history=data_plane_scenes("steady", sinks=("kafka",), faults=DOUBTFUL),
        is_dear=True,
    ),
    Guard(
        "A table's marker says whether a batch is published.",
        ((postgres, "next_step", lambda *_: Step.APPLY),),
        WRONG_ROWS,
        0,
        history=data_plane_scenes("sleeper", "crash", moments=(SINK_MOMENT,), sinks=TABLES[:1], faults=DOUBTFUL),
        is_dear=True,
    ),
    Guard(
        "A table's rows of batches that the job goes back behind are taken back.",
        ((PostgresSink, "_take_back", lambda *_: None),),
        WRONG_ROWS,
        0,
        history=data_plane_scenes("go back", sinks=TABLES[:1]),
    ),
    Guard(
        "A job does not return to a snapshot whose rows were taken back.",
        ((resume_plan, "keeps_output_of", lambda *_: True),),
        WRONG_ROWS,
        0,
        seeds=1,
        history=lambda _: BACK_AND_FORWARD,
        is_dear=True,
    ),
    Guard(
        "A new driver ends the sessions of older ones.",
        ((postgres, "end_sessions_before", lambda *_: None),),
        "waited for a transaction",
        0,
        history=data_plane_scenes("sleeper", moments=(SINK_MOMENT,), sinks=TABLES),
    ),
    Guard(
        "A batch is moved to its table after its commit.",
        ((BatchLoop, "_commit", publish_and_commit),),
        "was published before",
        0,
        history=data_plane_scenes("steady", sinks=TABLES),
    ),
)

WITHOUT_CONTROL = {
    "All subtasks take operator state over in the same batch.": (
        "The job has timers: in the first batch of an attempt every subtask may have timers that are due, and runs."
    ),
    "The marker of a table is set with its rows.": (
        "The staging table is emptied in the same transaction: rows that are moved again are none."
    ),
    "An older attempt of a table is refused by its marker.": (
        "A newer attempt has ended its sessions and dropped its staging tables."
    ),
}
"""Guards behind which another one stands; the tests of their units show them."""
