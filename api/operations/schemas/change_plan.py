"""Plans: the effects of a change of a job, before anything stops."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import Fate, RescaleMode

from ...shapes import Answer, FailureAnswer


class StatePlan(Answer):
    """The fate of one state, or of the timers of one name."""

    name: str
    kind: str = Field(description="value, map, list, reducing, aggregating, timers, or a kind of operator state.")
    fate: Fate = Field(
        description=(
            "`KEPT`; `NEW`: it begins empty; `MIGRATED`: old values are read by `rules`; `NOT_DECLARED`: it stays as it"
            " is, unread, until a program declares it (a state that a function declares only while it processes records"
            " is shown so); `DROPPED`: it is lost with its operator; `INCOMPATIBLE`: the program cannot open it."
        )
    )
    rules: list[str] = Field(default_factory=list, description="How old values are read, where it is migrated.")
    stored: str | None = Field(default=None, description="Its stored form; null if it has none.")
    declared: str | None = Field(default=None, description="The form that the program declares; null if it does not.")
    ttl_ms: int | None = Field(default=None, description="The time to live that the program declares.")
    reason: str | None = Field(default=None, description="Why it is incompatible.")


class OperatorPlan(Answer):
    """The fate of one operator and its states."""

    uid: str
    fate: Fate
    states: list[StatePlan] = Field(default_factory=list)
    reason: str | None = Field(default=None, description="Why it is incompatible as a whole.")


class EndpointPlan(Answer):
    """The fate of a source or a sink."""

    uid: str
    fate: Fate = Field(description="`KEPT`, `NEW`, `DROPPED`, or `INCOMPATIBLE` for a source that reads another kind.")
    kind: str | None = None
    reason: str | None = None


class SettingPlan(Answer):
    """A setting that changes.

    Secret values are masked, and artifacts have their name and version.
    """

    name: str
    before: str | None
    after: str | None
    needs_restart: bool = Field(
        description="Whether the driver is replaced for it in any case; not if the job does not run."
    )


class SubtaskMovementAnswer(Answer):
    """The files that one new subtask opens."""

    index: int
    key_group_start: int
    key_group_end: int
    state_bytes: int
    files: int
    from_subtasks: list[int] = Field(description="The subtasks that wrote them.")
    moved_bytes: int = Field(description="Bytes that it downloads; 0 where files are linked on the same host.")
    clipped_shards: int = Field(description="Shards of which it takes only a part, by range deletes.")
    expected_bytes: int | None = Field(
        default=None,
        description="Bytes of the key groups that it owns, without clipped parts; null if sizes are unknown.",
    )


class OperatorMovement(Answer):
    """The files of one operator's new subtasks, and how even they are."""

    uid: str
    state_bytes: int
    moved_bytes: int
    subtasks: list[SubtaskMovementAnswer]
    skew_ratio: float | None = Field(
        default=None, description="Largest subtask's bytes by the mean of all; null where sizes are not known."
    )
    largest_key_group: int | None = Field(default=None, description="The key group with the most bytes.")
    largest_key_group_bytes: int | None = None


class MovementPlan(Answer):
    """The state that would move, by the latest completed checkpoint or savepoint."""

    checkpoint_location: str | None = Field(description="null: the job has no snapshot, and nothing moves.")
    same_host: bool = Field(description="Whether all subtasks run on one host, where files are linked.")
    state_bytes: int
    moved_bytes: int
    operators: list[OperatorMovement]


class DowntimePlan(Answer):
    """The downtime to expect, by the job's own history."""

    expected_ms: int | None = Field(description="The median of the job's last changes; null: see `reason`.")
    reason: str | None
    samples_ms: list[int] = Field(description="The downtimes of those changes, newest first.")


class PlanAnswer(Answer):
    """The effects that a change would have. Nothing has been changed."""

    job_id: str
    compatible: bool = Field(description="Whether the changed job can take over the state that is stored.")
    requires_allow_non_restored_state: bool = Field(
        description="Whether state would be lost, which `allow_non_restored_state` has to allow."
    )
    program_loaded: bool = Field(description="Whether the program was run to read its declaration.")
    failure: FailureAnswer | None = Field(description="Why the program could not be loaded.")
    from_parallelism: int
    to_parallelism: int
    max_parallelism: int = Field(description="Never changes.")
    hash_id: str = Field(description="Never changes.")
    operators: list[OperatorPlan] = Field(description="Empty where the program was not loaded.")
    sources: list[EndpointPlan]
    sinks: list[EndpointPlan]
    settings: list[SettingPlan]
    movement: MovementPlan
    rescale_mode: RescaleMode | None = Field(
        default=None,
        description="Of a rescale of a running job: LIVE, by the running driver, or STANDBY, by a new driver.",
    )
    not_live: FailureAnswer | None = Field(default=None, description="Why a new driver would carry the rescale out.")
    downtime: DowntimePlan

    def problems(self) -> list[str]:
        """Returns why the change cannot be made, a line each."""
        found = [] if self.failure is None else [self.failure.message]
        for operator in self.operators:
            if operator.reason is not None:
                found.append(f"operator {operator.uid!r} {operator.reason}")
            found += [f"operator {operator.uid!r}: {each.reason}" for each in operator.states if each.reason]
        return found + [each.reason for each in self.sources if each.reason is not None]

    def dropped(self) -> list[str]:
        """Returns the uids with state, positions or unpublished output to lose."""
        operators = [each.uid for each in self.operators if each.fate is Fate.DROPPED]
        unpublished = [each.uid for each in self.sinks if each.reason is not None]
        return operators + [each.uid for each in self.sources if each.fate is Fate.DROPPED] + unpublished
