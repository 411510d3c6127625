"""Errors that callers of the API see, as `application/problem+json`.

Every class is explained in docs/errors.md under its code. Messages (`detail`) never hold a record or a secret.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Domain = Literal["user", "external", "internal"]


class ApiError(Exception):
    """Root of the control plane's errors.

    Attributes:
        code: Stable name, by which programs tell errors apart.
        title: What is wrong, the same for every error of this code.
        status: HTTP status.
        domain: Who can change it: the caller, something outside, or us.
        retryable: Whether the same request may succeed later.
        advice: What the caller can do.
    """

    code: ClassVar[str] = "INTERNAL_ERROR"
    title: ClassVar[str] = "The control plane has failed"
    status: ClassVar[int] = 500
    domain: ClassVar[Domain] = "internal"
    retryable: ClassVar[bool] = False
    advice: ClassVar[str] = "This is a defect. Look for this moment in the control plane's log, and report it."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


# --- requests -------------------------------------------------------------------------------------------------------


class RequestInvalidError(ApiError):
    """A request does not have the form that the API describes."""

    code = "REQUEST_INVALID"
    title = "The request is not valid"
    status = 422
    domain = "user"
    advice = "`errors` names each wrong field. GET /openapi.json describes every request."


class RouteNotFoundError(ApiError):
    """There is nothing at this path."""

    code = "ROUTE_NOT_FOUND"
    title = "There is nothing at this path"
    status = 404
    domain = "user"
    advice = "GET /openapi.json lists every path."


class MethodNotAllowedError(ApiError):
    """The path exists, but not for this method."""

    code = "METHOD_NOT_ALLOWED"
    title = "The path does not take this method"
    status = 405
    domain = "user"
    advice = "GET /openapi.json lists the methods of every path."


class TokenMissingError(ApiError):
    """A request came without a valid token."""

    code = "TOKEN_INVALID"
    title = "A valid token is needed"
    status = 401
    domain = "user"
    advice = "Send `Authorization: Bearer <token>`. The admin token is in the file `token` of the control plane's home."


class HostNotAllowedError(ApiError):
    """The Host header names a host that is not ours, as in a DNS rebinding attack."""

    code = "HOST_NOT_ALLOWED"
    title = "The API may not be called by this host name"
    status = 421
    domain = "user"
    advice = "Call it by its address, or add the name to KEYSCALE_ALLOWED_HOSTS."


class OriginNotAllowedError(ApiError):
    """A page of another origin has sent a request with our cookie."""

    code = "ORIGIN_NOT_ALLOWED"
    title = "Pages of other sites may not call the API"
    status = 403
    domain = "user"
    advice = "Send the token in the Authorization header."


class BodyTooLargeError(ApiError):
    """A request's body is larger than this path takes."""

    code = "BODY_TOO_LARGE"
    title = "The request's body is too large"
    status = 413
    domain = "user"
    advice = "Upload less: data and large libraries do not belong into an artifact."


# --- artifacts ------------------------------------------------------------------------------------------------------


class ArtifactNotFoundError(ApiError):
    """There is no artifact of this id."""

    code = "ARTIFACT_NOT_FOUND"
    title = "There is no such artifact"
    status = 404
    domain = "user"
    advice = "GET /artifacts lists them."


class ArtifactInvalidError(ApiError):
    """Uploaded bytes are no Python file, zip or jar, or not a sound one."""

    code = "ARTIFACT_INVALID"
    title = "The file is no usable Python file, zip or jar"
    status = 422
    domain = "user"
    advice = "Upload a .py file that Python can compile, a .zip with a __main__.py at its root, or a .jar."


class ArtifactNotRunnableError(ApiError):
    """A job was to be made of an artifact that holds no program of its own."""

    code = "ARTIFACT_NOT_RUNNABLE"
    title = "A job cannot be made of this artifact"
    status = 422
    domain = "user"
    advice = "A job's artifact is a .py file, or a .zip with a __main__.py."


class ArtifactInUseError(ApiError):
    """An artifact cannot be deleted while a job uses it."""

    code = "ARTIFACT_IN_USE"
    title = "A job uses this artifact"
    status = 409
    domain = "user"
    advice = "Delete the job first."


# --- jobs -----------------------------------------------------------------------------------------------------------


class JobNotFoundError(ApiError):
    """There is no job of this id or name."""

    code = "JOB_NOT_FOUND"
    title = "There is no such job"
    status = 404
    domain = "user"
    advice = "GET /jobs lists them. A job is named by its id or its name."


class JobNameTakenError(ApiError):
    """Two jobs cannot have one name."""

    code = "JOB_NAME_TAKEN"
    title = "There is a job of this name"
    status = 409
    domain = "user"
    advice = "Choose another name, or delete that job."


class JobStatusConflictError(ApiError):
    """What was asked for cannot be done to a job in its present status."""

    code = "JOB_STATUS_CONFLICT"
    title = "The job's status does not allow this"
    status = 409
    domain = "user"
    retryable = True
    advice = "GET /jobs/{id} shows the status. Wait for it to change, or stop or cancel the job first."


class ParallelismInvalidError(ApiError):
    """A parallelism is below 1 or above the job's max parallelism."""

    code = "PARALLELISM_OUT_OF_RANGE"
    title = "The parallelism is out of range"
    status = 422
    domain = "user"
    advice = (
        "Parallelism is from 1 to the job's max parallelism, which is fixed when the job is created (at most 32768)."
    )


class SparkConfNotAllowedError(ApiError):
    """A job wants to set a Spark setting that jobs may not set."""

    code = "SPARK_CONF_NOT_ALLOWED"
    title = "A job may not set this Spark setting"
    status = 422
    domain = "user"
    advice = "Only settings of memory, cores and time-outs are a job's to choose; docs/reference lists them."


# --- operations -----------------------------------------------------------------------------------------------------


class OperationNotFoundError(ApiError):
    """There is no operation of this id."""

    code = "OPERATION_NOT_FOUND"
    title = "There is no such operation"
    status = 404
    domain = "user"
    advice = "Use the operation_id that the request was answered with."


class OperationIdTakenError(ApiError):
    """A client-supplied operation id already belongs to something else."""

    code = "OPERATION_ID_TAKEN"
    title = "This operation id belongs to another operation"
    status = 409
    domain = "user"
    advice = "Send a new id for a new operation; the same id is for repeating the very same request."


class CheckpointNotFoundError(ApiError):
    """A job has no checkpoint of this number."""

    code = "CHECKPOINT_NOT_FOUND"
    title = "The job has no such checkpoint"
    status = 404
    domain = "user"
    advice = "GET /jobs/{id}/checkpoints lists them."


class SavepointNotFoundError(ApiError):
    """A job has no savepoint of this id."""

    code = "SAVEPOINT_NOT_FOUND"
    title = "The job has no such savepoint"
    status = 404
    domain = "user"
    advice = "GET /jobs/{id}/savepoints lists them."


class RescaleNotFoundError(ApiError):
    """A job has no rescale of this id."""

    code = "RESCALE_NOT_FOUND"
    title = "The job has no such rescale"
    status = 404
    domain = "user"
    advice = "GET /jobs/{id}/rescales lists them."


class RescaleInProgressError(ApiError):
    """A job is being rescaled; a second rescale has to wait."""

    code = "RESCALE_IN_PROGRESS"
    title = "The job is being rescaled"
    status = 409
    domain = "user"
    retryable = True
    advice = "Wait for the running rescale to end: GET /jobs/{id}/rescales/{rescale_id}."


class ParallelismUnchangedError(ApiError):
    """A rescale asks for the parallelism that the job has."""

    code = "PARALLELISM_UNCHANGED"
    title = "The job already has this parallelism"
    status = 409
    domain = "user"
    advice = "Ask for another parallelism."


class AttemptOverError(ApiError):
    """A driver's attempt has been ended or replaced: the driver is to end."""

    code = "ATTEMPT_OVER"
    title = "The attempt is over"
    status = 410
    domain = "external"
    advice = "Nothing is wrong: another attempt runs the job, or the job has ended."


class AttemptNotFoundError(ApiError):
    """A job has no attempt of this number."""

    code = "ATTEMPT_NOT_FOUND"
    title = "The job has no such attempt"
    status = 404
    domain = "user"
    advice = "GET /jobs/{id}/attempts lists them."


# --- what stands behind the control plane ---------------------------------------------------------------------------


class DatabaseUnavailableError(ApiError):
    """PostgreSQL does not answer. Running jobs are not affected."""

    code = "DATABASE_UNAVAILABLE"
    title = "The database does not answer"
    status = 503
    domain = "external"
    retryable = True
    advice = "Running jobs go on. Bring PostgreSQL back; the control plane connects by itself."


class StoreUnavailableError(ApiError):
    """The object store does not answer, or refuses us."""

    code = "STORE_UNAVAILABLE"
    title = "The object store cannot be used"
    status = 503
    domain = "external"
    retryable = True
    advice = "Check KEYSCALE_STORE_URL, the store's endpoint and credentials, and that it is up. The job is as it was."


class ReconcilerDownError(ApiError):
    """The reconciler has not finished a round for a while: nothing is started, restarted or rescaled."""

    code = "RECONCILER_DOWN"
    title = "The reconciler does not work"
    status = 503
    domain = "internal"
    retryable = True
    advice = "Running jobs go on. If the database answers, look into the control plane's log and restart it."


class SettingInvalidError(ApiError):
    """A variable of the control plane's environment has a value that cannot be used."""

    code = "SETTING_INVALID"
    title = "A setting of the control plane is not valid"
    domain = "user"
    advice = "Correct the named environment variable and start again."


def all_errors() -> list[type[ApiError]]:
    """Returns every class of the tree, for the catalogue and its test."""
    return [ApiError, *ApiError.__subclasses__()]
