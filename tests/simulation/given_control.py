"""A control plane that decides nothing: it hands out the attempts and commands that a history gives it.

With it a history of the data plane needs no database, and drivers meet what no control plane of ours would do to them,
such as two attempts that both run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyscale.jobs.protocol.messages import Assignment, AttachResponse, HeartbeatResponse, LiveSettings
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.vocabulary import CheckpointStatus, KeyGroupDivision
from tests.simulation.network import AttemptEndedError
from tests.simulation.object_store import URL

if TYPE_CHECKING:
    from keyscale.jobs.protocol.messages import AttachRequest, CheckpointReport, Command, CommandResult, Heartbeat

MAX_PARALLELISM = 8
SETTINGS = CheckpointSettings(
    interval_ms=10_000, timeout_ms=30_000, retained_count=2, tolerable_failed_checkpoints=3, store_outage_max_ms=40_000
)
SLOW_SETTINGS = SETTINGS.model_copy(update={"interval_ms": 30_000})
"""For the time after a history, in which little happens."""


@dataclass(slots=True)
class GivenControl:
    """Attributes: what it was told by drivers, and what it tells them.

    Attributes:
        assignments: By job and attempt.
        over: Attempts that it no longer wants.
        commands: By job and attempt, those without a result.
        results: By command.
        completed: Locations of completed checkpoints and savepoints, by job, in the order of their reports.
        heard: The last heartbeat of each attempt.
        settings: What running attempts follow.
        assigned: What attempts are assigned from now on.
    """

    assignments: dict[tuple[str, int], Assignment] = field(default_factory=dict)
    over: set[tuple[str, int]] = field(default_factory=set)
    commands: dict[tuple[str, int], list[Command]] = field(default_factory=dict)
    results: dict[str, CommandResult] = field(default_factory=dict)
    completed: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    heard: dict[tuple[str, int], Heartbeat] = field(default_factory=dict)
    settings: CheckpointSettings = SETTINGS
    assigned: CheckpointSettings = SETTINGS

    def _followed(self, job_id: str, attempt: int) -> LiveSettings:
        spec = self.assignments[job_id, attempt].spec.model_copy(update={"checkpoints": self.settings})
        return LiveSettings(revision=2, spec=spec)

    def attach(self, job_id: str, attempt: int, message: AttachRequest) -> AttachResponse:  # noqa: ARG002
        if (job_id, attempt) in self.over:
            return AttachResponse(decision="exit")
        return AttachResponse(decision="run", assignment=self.assignments[job_id, attempt])

    def heartbeat(self, job_id: str, attempt: int, message: Heartbeat) -> HeartbeatResponse:
        if (job_id, attempt) in self.over:
            raise AttemptEndedError(f"attempt {attempt} is over")
        self.heard[job_id, attempt] = message
        for result in message.results:
            self.results.setdefault(result.command_id, result)
        commands = self.commands.get((job_id, attempt), [])
        return HeartbeatResponse(
            commands=[command for command in commands if command.id not in self.results],
            settings=None if self.settings is SETTINGS else self._followed(job_id, attempt),
        )

    def report_checkpoint(self, job_id: str, attempt: int, message: CheckpointReport) -> None:  # noqa: ARG002
        if message.status is CheckpointStatus.COMPLETED and message.external_path is not None:
            self.completed.setdefault(job_id, []).append((message.external_path, message.checkpoint_id))

    def assign(
        self, job_id: str, attempt: int, parallelism: int, *, restart: object = None, **restore: object
    ) -> Assignment:
        """Makes an assignment, which the attempt's driver gets when it asks for work."""
        reported = [number for _, number in self.completed.get(job_id, [])]
        assignment = Assignment.model_validate(
            {
                "job_id": job_id,
                "job_name": job_id,
                "attempt": attempt,
                "spec": {
                    "artifact_id": "artifact",
                    "parallelism": parallelism,
                    "max_parallelism": MAX_PARALLELISM,
                    "key_group_division": KeyGroupDivision.BY_SIZE,
                    "checkpoints": self.assigned.model_dump(),
                    "restart": restart,
                },
                "artifact_filename": "none.py",
                "artifact_sha256": "0" * 64,
                "store_url": URL,
                "next_checkpoint_id": max(reported, default=0) + 1,
                **restore,
            }
        )
        self.assignments[job_id, attempt] = assignment
        return assignment
