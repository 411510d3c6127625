"""Errors of a driver.

jobs/errors.py has the errors of a job's declaration and its batches.
"""

from __future__ import annotations

from ..errors import JobError


class DriverEnvironmentError(JobError):
    """The driver was started without something that it needs."""

    code = "DRIVER_ENVIRONMENT_INVALID"
    advice = "Start drivers through the control plane; by hand, set what jobs/runtime/driver/main.py lists."


class ControlError(JobError):
    """Root of the errors of talking to the control plane."""

    code = "DRIVER_CONTROL"


class ControlUnreachableError(ControlError):
    """The control plane gave no usable answer.

    The job continues and the driver tries again.
    """

    code = "DRIVER_CONTROL_UNREACHABLE"
    domain = "external"
    retryable = True
    advice = "The job needs nothing; find out why the control plane does not answer."


class ControlRefusedError(ControlError):
    """The control plane refused a message."""

    code = "DRIVER_CONTROL_REFUSED"
    advice = "The driver and the control plane are of different versions; run both from the same one."


class AttemptUnknownError(ControlRefusedError):
    """A control plane at a known address does not know the attempt.

    It may have another database, so the driver goes on and its reports wait.
    """

    code = "DRIVER_ATTEMPT_UNKNOWN"
    advice = (
        "Start the control plane with the job's database; if the database is lost, rebuild the job with"
        " `./keyscale recover`."
    )


class AttemptOverError(ControlError):
    """The control plane no longer wants this attempt."""

    code = "DRIVER_ATTEMPT_OVER"
    advice = "Nothing to do: a later attempt runs the job, or the job has ended."


class DiagnosticFailedError(JobError):
    """The driver could not take a diagnostic; the job goes on."""

    code = "DRIVER_DIAGNOSTIC_FAILED"
    advice = "Request it again. The driver's log has the traceback."


class NoLocalWorkerError(DiagnosticFailedError):
    """A profile has found no Python worker on the driver's host."""

    code = "DRIVER_NO_LOCAL_WORKER"
    advice = "Wait until the job has run a batch. On a cluster, run py-spy on the hosts of the executors."


class NoBatchYetError(DiagnosticFailedError):
    """A sample was requested of a driver that restores its job's state."""

    code = "DRIVER_NO_BATCH_YET"
    retryable = True
    advice = "Wait until the job runs, `./keyscale jobs wait JOB`, and request it again."


class UnknownOperatorError(DiagnosticFailedError):
    """The job does not have the operator of a sample."""

    code = "DRIVER_OPERATOR_UNKNOWN"
    domain = "user"
    advice = "Request it of an operator that the message names."


class ArtifactCorruptError(JobError):
    """The artifact's bytes differ from the uploaded bytes."""

    code = "JOB_ARTIFACT_CORRUPT"
    domain = "external"
    retryable = True
    advice = "The next attempt downloads it again; upload the artifact again if this repeats."


class ArtifactUnsupportedError(JobError):
    """The artifact is neither a Python file nor a runnable zip.

    A runnable zip has a main.py or __main__.py at its top.
    """

    code = "JOB_ARTIFACT_UNSUPPORTED"
    domain = "user"
    advice = "Upload a .py file, or a .zip that holds main.py (or __main__.py) at its top."


class LibrariesMissingError(JobError):
    """The driver was started without a library of the job.

    The job's current revision brings the library.
    """

    code = "JOB_LIBRARIES_MISSING"
    domain = "internal"
    retryable = True
    advice = "The next attempt is started with the job's libraries. If this repeats, it is a defect: report it."


class JobScriptError(JobError):
    """The user's script failed before it had declared a job."""

    code = "JOB_SCRIPT_FAILED"
    domain = "user"
    advice = (
        "Correct the script where its traceback points, give the job the new program (`./keyscale jobs update JOB "
        "--file FILE`), and start it if it has FAILED (`./keyscale jobs start JOB --wait`)."
    )


class JobNotDeclaredError(JobError):
    """The user's script ended without declaring a job."""

    code = "JOB_NOT_DECLARED"
    domain = "user"
    advice = "End the script with env.execute()."


class RestoreRefusedError(JobError):
    """The checkpoint does not match the job.

    Starting from it would lose or misread state.
    """

    code = "JOB_RESTORE_REFUSED"
    domain = "user"
    advice = (
        "Keep uids, key columns, hash and max parallelism as they were. State of operators and positions of sources "
        "that the program no longer has are dropped if you allow it, with allow_non_restored_state."
    )


class OutputWithdrawnError(JobError):
    """The job has left the history of the snapshot.

    Its sinks have taken output back that the snapshot needs.
    """

    code = "JOB_OUTPUT_WITHDRAWN"
    domain = "user"
    advice = (
        "Start the job from a snapshot that was taken since it went back, or from an earlier one. To continue from "
        "this snapshot, create a clone from it, with a target of its own for each sink."
    )


class BatchOrderError(JobError):
    """Spark planned another batch than the commit log expects next."""

    code = "JOB_BATCH_OUT_OF_ORDER"
    advice = "Nothing was committed; the job restarts from its log. Report this with the driver's log if it repeats."


class RunEndedError(JobError):
    """The run has ended, so it can do nothing more."""

    code = "JOB_RUN_ENDED"
    advice = "Nothing to do: the job was stopped, or continues in another attempt."


class CheckpointTimeoutError(JobError):
    """A checkpoint was not complete in time."""

    code = "CHECKPOINT_TIMEOUT"
    domain = "external"
    retryable = True
    advice = "Raise the checkpoint timeout, or find out why the object store is slow."


class CheckpointNotBegunError(JobError):
    """A batch outlasted the checkpoint timeout, so no checkpoint began.

    It does not count as a failed checkpoint.
    """

    code = "CHECKPOINT_NOT_BEGUN"
    domain = "user"
    retryable = True
    advice = (
        "A checkpoint is taken between two batches: ask again when the batch has ended. Limit how much a batch reads, "
        "or scale out, so that batches are shorter."
    )


class CheckpointsFailingError(JobError):
    """More checkpoints have failed in a row than the job tolerates."""

    code = "CHECKPOINT_FAILURES_EXCEEDED"
    domain = "external"
    retryable = True
    advice = "Look at the failure of the last checkpoint and at the object store's health."


class RescaleNotLiveError(JobError):
    """The running driver cannot rescale its job."""

    code = "RESCALE_NOT_LIVE"
    advice = "Nothing to do: a new driver rescales the job."


class RescaleTimeoutError(JobError):
    """The new subtasks of a live rescale were not ready in time."""

    code = "RESCALE_TIMEOUT"
    domain = "external"
    retryable = True
    advice = "Nothing to do: a new driver rescales the job. Set rescale_mode to STANDBY if this happens each time."


class RescaleWithdrawnError(JobError):
    """The control plane has withdrawn a live rescale in time."""

    code = "RESCALE_WITHDRAWN"
    domain = "user"
    advice = "Nothing to do: the job runs on as before."


class SparkLostError(JobError):
    """The streaming query or Spark's JVM ended by itself."""

    code = "JOB_SPARK_FAILED"
    retryable = True
    advice = "Look into the driver's log; the job restarts from its latest checkpoint."
