"""The autoscaler of a job, as the API shows it."""

from __future__ import annotations

from pydantic import Field

from keyscale.vocabulary import AutoscalerMode, ScalingOutcome, ScalingVerdict

from ..shapes import Answer, ListAnswer


class EffectAnswer(Answer):
    """What a parallelism means for a job."""

    capacity: float = Field(description="Records that the job can process per second.")
    utilization: float = Field(description="The share of the capacity that the input and the backlog take.")
    work_ms: float = Field(description="Time of functions and state for 1,000 records, in the slowest subtask.")


class BatchCostAnswer(Answer):
    """The parts of an average batch with input."""

    records: float
    spark_ms: float = Field(description="Spark's own time, with the reading of sources and the shuffle.")
    log_ms: float = Field(description="Planning and commit in the object store.")
    work_ms: float = Field(description="Functions and state.")
    store_ms: float = Field(description="Waits for the object store.")
    sink_ms: float = Field(description="Sinks and publication.")


class ScalingFactsAnswer(Answer):
    """The evidence of a decision."""

    input_records_per_second: float | None = Field(
        description="Records that arrived per second, over the last minute; null if not known yet."
    )
    peak_records_per_second: float = Field(description="The highest such rate of the last ten minutes.")
    lag_records: int | None = Field(description="Records that wait; null if the sources cannot count.")
    batch: BatchCostAnswer
    batch_limit: int | None = Field(description="Records that the sources give a batch at most, if known.")
    splits: int | None = Field(description="The splits of the source with most splits, if known.")
    processor_wait_ratio: float = Field(description="Share of their time for which tasks wait for a processor.")
    parallelism_min: int
    parallelism_max: int
    affordable_parallelism: int | None = Field(
        description="The largest parallelism that the rest of the day's budget carries; null without a budget."
    )


class ScalingDecisionAnswer(Answer):
    """A decision of the autoscaler about a job."""

    id: int
    at_ms: int = Field(description="When it was first made.")
    confirmed_at_ms: int = Field(description="When it was last confirmed.")
    verdict: ScalingVerdict
    parallelism: int
    target: int = Field(description="The parallelism that the job should have.")
    message: str
    advice: str | None = Field(description="What helps, where more subtasks do not.")
    facts: ScalingFactsAnswer = Field(description="The evidence when it was last confirmed.")
    present: EffectAnswer | None = Field(description="The present parallelism; null if its speed is unknown.")
    expected: EffectAnswer | None = Field(description="The target, by the model; null without a move.")
    measured: EffectAnswer | None = Field(description="The target, measured after the move.")
    operation_id: str | None = Field(description="The rescale; null if the autoscaler only advises.")
    outcome: ScalingOutcome | None = Field(description="What has become of the move; null without a move.")


class AutoscalerAnswer(Answer):
    """The autoscaler of a job."""

    mode: AutoscalerMode
    decision: ScalingDecisionAnswer | None = Field(description="The latest decision; null before the first.")
    last_move: ScalingDecisionAnswer | None = Field(description="The latest decision that has rescaled the job.")


class ReplayPointAnswer(Answer):
    """The records that waited at a moment, and that would have waited."""

    at_ms: int
    lag_records: float = Field(description="The records that waited.")
    as_run: float = Field(description="By the model, at the parallelism that the job had.")
    replayed: float = Field(description="By the model, at the parallelism that was asked for.")


class ReplayPeaksAnswer(Answer):
    """The largest lag, as a time; null without input.

    In this time as many records arrive on average as waited.
    """

    measured_ms: float | None
    as_run_ms: float | None = Field(description="By the model, at the parallelism that the job had.")
    replayed_ms: float | None = Field(description="By the model, at the parallelism that was asked for.")


class ReplayAnswer(Answer):
    """A job's past input at another parallelism."""

    parallelism: int
    capacity: float | None = Field(
        description="Records that the job can process per second at the parallelism; null if its speed is unknown."
    )
    peaks: ReplayPeaksAnswer | None = Field(description="null if nothing can be replayed.")
    error: float | None = Field(
        description=(
            "By how much the model misses the measured peak, at the parallelism that the job had, as a share of the"
            " peak; null if nothing has waited."
        )
    )
    reason: str | None = Field(description="Why nothing can be replayed; null otherwise.")
    points: list[ReplayPointAnswer]


class ScalingDecisionList(ListAnswer):
    """The newest 500 decisions about a job, the newest first."""

    decisions: list[ScalingDecisionAnswer]
