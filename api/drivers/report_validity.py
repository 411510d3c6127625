"""Checks of drivers' reports.

Pure: facts in, the reason to refuse the report out.

A driver runs its user's code, so a report is a claim. A report can change only its own job's history, only as its own
attempt, and only so that the job can still be started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.identifiers import CheckpointId, JobId
from keyscale.jobs.protocol.messages import OPERATORS_MAX, REPORTED_SPLITS_MAX, SUBTASKS_MAX
from keyscale.state.doors.catalogue import UID_CHARACTERS_MAX
from keyscale.state.doors.objects import canonical_url
from keyscale.state.doors.paths import Layout, location_of
from keyscale.vocabulary import AttemptStage, CheckpointStatus, DriverState

if TYPE_CHECKING:
    from keyscale.jobs.protocol.messages import CheckpointReport, CommandResult, DriverMetrics, Heartbeat

CHECKPOINT_ID_STEP_MAX = 1_000_000
"""How far a checkpoint's number may be above all known numbers: reports get lost while the control plane is down."""
_BATCH_ID_MAX = 1 << 53

_BEFORE_RUNNING = frozenset({DriverState.STANDBY, DriverState.RESTORING})
_AS_STANDBY = frozenset({DriverState.STANDBY, DriverState.FAILED, DriverState.FENCED})


@dataclass(frozen=True, slots=True)
class ReportedAttempt:
    """The facts about the attempt that reports.

    Attributes:
        job_id: Its job.
        store_url: The root of the job's snapshots.
        number: Its number.
        parallelism: Its parallelism.
        max_parallelism: The number of the job's key groups.
        newest_checkpoint_id: The highest number of a checkpoint that the job's drivers have reported; 0: none.
    """

    job_id: str
    store_url: str
    number: int
    parallelism: int
    max_parallelism: int
    newest_checkpoint_id: int = 0

    def location(self, checkpoint_id: int, savepoint_id: str | None) -> str:
        """Returns the location at which the job's drivers publish a manifest."""
        path = Layout(JobId(self.job_id)).manifest(CheckpointId(checkpoint_id), savepoint_id)
        return location_of(canonical_url(self.store_url), path)


def why_not_checkpoint(report: CheckpointReport, by: ReportedAttempt) -> str | None:
    """Returns why a report of a checkpoint cannot be true, if so."""
    id_max = by.newest_checkpoint_id + CHECKPOINT_ID_STEP_MAX
    is_completed = report.status is CheckpointStatus.COMPLETED
    subtasks = {(subtask.operator_uid, subtask.index) for subtask in report.subtasks}
    rules = (
        (1 <= report.checkpoint_id <= id_max, f"checkpoint_id is not from 1 to {id_max}"),
        (report.is_savepoint == (report.savepoint_id is not None), "a savepoint, and nothing else, has a savepoint_id"),
        (
            report.external_path == (by.location(report.checkpoint_id, report.savepoint_id) if is_completed else None),
            "only a completed checkpoint has an external_path: the path at which the job publishes its manifest",
        ),
        (report.batch_id is None or -1 <= report.batch_id <= _BATCH_ID_MAX, "batch_id is out of range"),
        (
            all(1 <= subsumed < report.checkpoint_id for subsumed in report.subsumed_checkpoint_ids),
            "a checkpoint subsumes only earlier checkpoints",
        ),
        (len(subtasks) == len(report.subtasks), "a subtask is reported twice"),
        (len({uid for uid, _ in subtasks}) <= OPERATORS_MAX, f"the report has more than {OPERATORS_MAX} operators"),
        (all(0 <= index < by.parallelism for _, index in subtasks), "the attempt does not have such a subtask"),
        (
            all(0 <= one.key_group_start <= one.key_group_end < by.max_parallelism for one in report.subtasks),
            "the job does not have such key groups",
        ),
    )
    return next((reason for holds, reason in rules if not holds), None)


def why_not_heartbeat(message: Heartbeat, stage: AttemptStage, number: int) -> str | None:
    """Returns why a heartbeat cannot be true in a stage, if so."""
    if message.attempt not in {None, number}:
        return f"it is about attempt {message.attempt}, and its token belongs to attempt {number}"
    if stage is AttemptStage.RESERVED and (message.attempt is None or message.state in _BEFORE_RUNNING):
        return "a reserved attempt is opened by a driver that runs"
    if stage is AttemptStage.STANDBY and message.state not in _AS_STANDBY:
        return f"a standby has no assignment and cannot be {message.state}"
    if stage is AttemptStage.STANDBY and (message.first_commit or message.last_commit or message.results):
        return "a standby commits nothing and has no commands"
    for commit in (message.first_commit, message.last_commit):
        if commit is not None and not 0 <= commit.batch_id <= _BATCH_ID_MAX:
            return "a batch_id is out of range"
    return _why_not_metrics(message.metrics)


def _why_not_metrics(metrics: DriverMetrics) -> str | None:
    """Returns why a driver's metrics exceed the limits, if so.

    They are stored and shown with each heartbeat.
    """
    nodes, sources = metrics.graph, metrics.sources
    uids = [each.uid for part in (metrics.operators, metrics.sinks, sources, nodes) for each in part]
    rules = (
        (
            sum(len(each.subtasks) for each in metrics.operators) <= SUBTASKS_MAX,
            f"its operators have more than {SUBTASKS_MAX} subtasks together",
        ),
        (
            len(nodes) + sum(len(node.inputs) for node in nodes) <= 10 * OPERATORS_MAX,
            f"its graph has more than {10 * OPERATORS_MAX} nodes and edges",
        ),
        (
            all(len(uid) <= UID_CHARACTERS_MAX for uid in [*uids, *(each for node in nodes for each in node.inputs)]),
            f"a uid has more than {UID_CHARACTERS_MAX} characters",
        ),
        (
            sum(len(source.earliest) for source in sources) <= REPORTED_SPLITS_MAX,
            f"its sources have more than {REPORTED_SPLITS_MAX} splits together",
        ),
        (len({source.uid for source in sources}) == len(sources), "a source is reported twice"),
    )
    return next((reason for holds, reason in rules if not holds), None)


def why_not_result(result: CommandResult, savepoint_id: str | None, by: ReportedAttempt) -> str | None:
    """Returns why a command's result cannot be true; None if it can.

    Args:
        result: The result.
        savepoint_id: The savepoint that the command takes; None: it takes none.
        by: The attempt that the command was given to.
    """
    newest = by.newest_checkpoint_id
    if result.checkpoint_id is not None and not 1 <= result.checkpoint_id <= newest + CHECKPOINT_ID_STEP_MAX:
        return "the result's checkpoint_id is out of range"
    expected = by.location(0, savepoint_id) if savepoint_id is not None else None
    if savepoint_id is not None and result.status == "COMPLETED" and result.location != expected:
        return "the result's location is not where the job publishes this savepoint"
    return None
