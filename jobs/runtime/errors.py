"""What can go wrong in a driver, beyond the job's declaration and its batches (see jobs/errors.py)."""

from __future__ import annotations

from jobs.errors import JobError


class DriverEnvironmentError(JobError):
    """The driver was started without something that it needs."""

    code = "DRIVER_ENVIRONMENT_INVALID"
    advice = "Start drivers through the control plane; by hand, set what jobs/runtime/driver.py lists."


class ControlError(JobError):
    """Root of what talking to the control plane can fail with."""

    code = "DRIVER_CONTROL"


class ControlUnreachableError(ControlError):
    """The control plane gave no usable answer. The job runs on and the driver tries again."""

    code = "DRIVER_CONTROL_UNREACHABLE"
    domain = "external"
    retryable = True
    advice = "Nothing to do for the job; see why the control plane is away."


class ControlRefusedError(ControlError):
    """The control plane refused a message."""

    code = "DRIVER_CONTROL_REFUSED"
    advice = "The driver and the control plane do not fit together; run both from one version."


class AttemptOverError(ControlError):
    """The control plane no longer wants this attempt."""

    code = "DRIVER_ATTEMPT_OVER"
    advice = "Nothing to do: a later attempt runs the job, or it was ended."


class ArtifactCorruptError(JobError):
    """The artifact's bytes are not those that were uploaded."""

    code = "JOB_ARTIFACT_CORRUPT"
    domain = "external"
    retryable = True
    advice = "The download is tried again with the next attempt; upload the artifact again if this repeats."


class ArtifactUnsupportedError(JobError):
    """The artifact is neither a Python file nor a zip with a main.py."""

    code = "JOB_ARTIFACT_UNSUPPORTED"
    domain = "user"
    advice = "Upload a .py file, or a .zip that holds main.py (or __main__.py) at its top."


class JobScriptError(JobError):
    """The user's script raised before it had declared a job."""

    code = "JOB_SCRIPT_FAILED"
    domain = "user"
    advice = "Correct the script as its traceback shows, upload it and start the job again."


class JobNotDeclaredError(JobError):
    """The user's script ended without declaring a job."""

    code = "JOB_NOT_DECLARED"
    domain = "user"
    advice = "End the script with env.execute()."


class SparkStateUnsupportedError(JobError):
    """The job's input has a stateful operator of Spark's own, whose state no checkpoint would hold."""

    code = "JOB_SPARK_STATE_UNSUPPORTED"
    domain = "user"
    advice = (
        "Use key_by(...).process(...), deduplicate(...) and windows of Keyscale instead of Spark's stateful operators."
    )


class PositionsCorruptError(JobError):
    """The recorded source positions cannot be turned back into what Spark needs."""

    code = "JOB_POSITIONS_CORRUPT"
    domain = "external"
    advice = "Restore from an earlier checkpoint or savepoint."


class PositionsMissingError(JobError):
    """Spark has begun a batch whose offsets are not in its checkpoint directory, so nobody could run it again as it is."""

    code = "JOB_POSITIONS_MISSING"
    advice = "Nothing was planned or committed; see whether the driver's work directory was removed or filled up."


class RestoreRefusedError(JobError):
    """The checkpoint does not fit the job: starting from it would lose or misread state."""

    code = "JOB_RESTORE_REFUSED"
    domain = "user"
    advice = "Keep uids, key columns, hash and max parallelism as they were, or start the job without the checkpoint."


class BatchOrderError(JobError):
    """Spark planned a batch that the commit log does not expect next."""

    code = "JOB_BATCH_OUT_OF_ORDER"
    advice = (
        "Nothing was committed; the job starts again from its log. Report this with the driver's log if it repeats."
    )


class RunEndedError(JobError):
    """Something was asked of a run that has ended."""

    code = "JOB_RUN_ENDED"
    advice = "Nothing to do: the job was stopped, or goes on in another attempt."


class CheckpointTimeoutError(JobError):
    """A checkpoint was not complete in time."""

    code = "CHECKPOINT_TIMEOUT"
    domain = "external"
    retryable = True
    advice = "Raise the checkpoint timeout, or see why the object store is slow."


class CheckpointsFailingError(JobError):
    """More checkpoints in a row have failed than the job tolerates."""

    code = "CHECKPOINT_FAILURES_EXCEEDED"
    domain = "external"
    retryable = True
    advice = "See the failure of the last checkpoint, and the object store's health."


class SparkLostError(JobError):
    """The streaming query ended by itself, or Spark's JVM did."""

    code = "JOB_SPARK_FAILED"
    retryable = True
    advice = "See the driver's log; the job starts again from its latest checkpoint."
