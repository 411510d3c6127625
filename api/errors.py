"""The errors of the control plane.

Callers of the API see them as `application/problem+json`.

docs/errors.md explains every class under its code. Messages (`detail`) never hold a record or a secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Self

from keyscale.errors import KeyscaleError
from keyscale.jobs.protocol.storable_text import storable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi.exceptions import RequestValidationError
    from pydantic import ValidationError


class ApiError(KeyscaleError):
    """Root of the control plane's errors.

    Attributes:
        title: Describes the error, with the same text for every error of this code.
        status: HTTP status of the answer.
        detail: Describes the single error.
        retry_after_s: Time to wait before sending the request again, if waiting can help.
    """

    code = "INTERNAL_ERROR"
    title: ClassVar[str] = "The control plane failed"
    status: ClassVar[int] = 500
    retry_after_s: float = 2.0
    advice = "This is a defect. Find the error in the control plane's log by its time, and report it."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.detail, *self.more.values())

    @property
    def more(self) -> dict[str, Any]:
        """Returns further fields of the answer, in the order of the arguments."""
        return {}


# --- requests -------------------------------------------------------------------------------------------------------


class HttpInvalidError(ApiError):
    """The bytes of a connection are not a request of HTTP/1.1."""

    code = "HTTP_INVALID"
    title = "The request is not valid HTTP"
    status = 400
    domain = "user"
    advice = "Send the request with an HTTP client, and check its headers for control characters."


class RequestInvalidError(ApiError):
    """A request does not have the form that the API describes."""

    code = "REQUEST_INVALID"
    title = "The request is not valid"
    status = 422
    domain = "user"
    advice = "`errors` names each wrong field. GET /v1/openapi.json describes every request."

    def __init__(self, detail: str = "", errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(detail)
        self._errors = [dict(each) for each in errors]

    @classmethod
    def of(cls, failed: ValidationError | RequestValidationError, *place: str) -> Self:
        """Returns the error of values that a model refuses.

        It has no values, because they may hold a secret.
        """
        errors = [
            {"field": storable(".".join(map(str, (*place, *field)))), "message": message}
            for field, message in map(_field_and_message, failed.errors())
        ]
        named = ", ".join(found["field"] for found in errors[:3])
        return cls(f"not valid: {named}", errors)

    @property
    def more(self) -> dict[str, Any]:
        """Returns the wrong fields, if they are known."""
        return {"errors": self._errors} if self._errors else {}


_NOT_AN_OBJECT = {"dict_type", "model_attributes_type", "model_type"}
_AS_JSON = ", sent with the header Content-Type: application/json"


def _field_and_message(found: Mapping[str, Any]) -> tuple[tuple[str | int, ...], str]:
    """Returns the place of a wrong field, and the message about it.

    pydantic says of a field that chooses between models, such as `kind`, what it is in Python, and of an object that
    has attributes.
    """
    field, message, kind = tuple(found["loc"]), str(found["msg"]), found.get("type", "")
    if kind in _NOT_AN_OBJECT:
        is_unread = isinstance(found.get("input"), bytes)  # FastAPI reads a body as JSON only if its header says so
        return field, "Input should be a JSON object" + (_AS_JSON if is_unread else "")
    if not kind.startswith("union_tag_"):
        return field, message
    chooser = found["ctx"]["discriminator"].strip("'")
    if kind == "union_tag_not_found":
        return (*field, chooser), "Field required"
    allowed = re.findall(r"'([^']*)'", found["ctx"]["expected_tags"])
    return (*field, chooser), f"Input should be one of {', '.join(allowed)}"


class CursorInvalidError(ApiError):
    """The parameter `after` is not a cursor of the list."""

    code = "CURSOR_INVALID"
    title = "The cursor does not belong to this list"
    status = 422
    domain = "user"
    advice = "Send the `next` of an earlier answer of the same list unchanged, or leave `after` out to begin again."


class RouteNotFoundError(ApiError):
    """There is nothing at this path."""

    code = "ROUTE_NOT_FOUND"
    title = "This path does not exist"
    status = 404
    domain = "user"
    advice = "GET /v1/openapi.json lists every path."


class MethodNotAllowedError(ApiError):
    """The path does not support this method."""

    code = "METHOD_NOT_ALLOWED"
    title = "The path does not support this method"
    status = 405
    domain = "user"
    advice = "GET /v1/openapi.json lists the methods of every path."


class TokenMissingError(ApiError):
    """A request has no valid token."""

    code = "TOKEN_INVALID"
    title = "A valid token is required"
    status = 401
    domain = "user"
    advice = "Send `Authorization: Bearer <token>`. The admin token is in the file `token` of the control plane's home."


class TokenExpiredError(TokenMissingError):
    """A request's token or a page's session has expired."""

    code = "TOKEN_EXPIRED"
    title = "The token has expired"
    advice = "Ask an administrator for a new token (`./keyscale tokens create`). In a browser, sign in again."


class TokenRevokedError(TokenMissingError):
    """The token of a request was revoked."""

    code = "TOKEN_REVOKED"
    title = "The token was revoked"
    advice = "Ask an administrator for a new token (`./keyscale tokens create`)."


class RoleTooLowError(ApiError):
    """A user's role does not allow the request."""

    code = "ROLE_TOO_LOW"
    title = "Your role does not allow this"
    status = 403
    domain = "user"
    advice = "`detail` names the role that is needed. Ask an administrator for a token with that role."


class RoleMissingError(ApiError):
    """The issuer knows the user, but settings grant the user no role."""

    code = "ROLE_MISSING"
    title = "You have no role here"
    status = 403
    domain = "user"
    advice = (
        "Ask an administrator to map one of your groups to a role in KEYSCALE_OIDC_ROLES, and to jobs in"
        " KEYSCALE_OIDC_JOB_LABELS if that is set."
    )


class IssuerUnavailableError(ApiError):
    """The OpenID Connect issuer does not answer, or answers incorrectly."""

    code = "ISSUER_UNAVAILABLE"
    title = "The OpenID Connect issuer cannot be used"
    status = 503
    domain = "external"
    retryable = True
    advice = "Check KEYSCALE_OIDC_ISSUER and that the issuer is running. Keyscale's own tokens work without it."


class OutOfScopeError(ApiError):
    """A user tries to make a job outside the user's scope."""

    code = "OUT_OF_SCOPE"
    title = "Your scope does not cover this job"
    status = 403
    domain = "user"
    advice = (
        "Give the job the labels of your scope, or a name that your scope covers. `./keyscale whoami` shows the scope. "
        "Over HTTP: GET /v1/whoami."
    )


class TokenNotFoundError(ApiError):
    """No token has this id."""

    code = "TOKEN_NOT_FOUND"
    title = "The token does not exist"
    status = 404
    domain = "user"
    advice = "Use the token's id, not the token. `./keyscale tokens list` lists all tokens. Over HTTP: GET /v1/tokens."


class TokenNameTakenError(ApiError):
    """Another valid token has this name.

    Events could not distinguish the two tokens.
    """

    code = "TOKEN_NAME_TAKEN"
    title = "A valid token already has this name"
    status = 409
    domain = "user"
    advice = "Choose another name, or revoke that token first."


class SubscriptionNotFoundError(ApiError):
    """No subscription of the user has this id.

    Administrators see the subscriptions of all users.
    """

    code = "SUBSCRIPTION_NOT_FOUND"
    title = "The subscription does not exist"
    status = 404
    domain = "user"
    advice = "`./keyscale subscriptions list` lists all subscriptions. Over HTTP: GET /v1/subscriptions."


class SubscriptionRefusedError(ApiError):
    """The control plane cannot have this subscription.

    It cannot send to the target, or has the maximum number of subscriptions.
    """

    code = "SUBSCRIPTION_REFUSED"
    title = "The subscription is not possible"
    status = 422
    domain = "user"
    advice = "`detail` says what is wrong. The guide on notifications describes the target of each channel."


class RateLimitedError(ApiError):
    """A user or an address sends too many requests.

    Requests without a valid token have their own limit.
    """

    code = "RATE_LIMITED"
    title = "Too many requests"
    status = 429
    domain = "user"
    retryable = True
    advice = (
        "Wait, and try again. docs/configuration.md lists the limits and their settings. Over HTTP: the header "
        "Retry-After says how long to wait."
    )

    def __init__(self, detail: str = "", retry_after_s: float = 2.0) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.detail, self.retry_after_s)


class HostNotAllowedError(ApiError):
    """The Host header names another host, as in a DNS rebinding attack."""

    code = "HOST_NOT_ALLOWED"
    title = "The API may not be called under this host name"
    status = 421
    domain = "user"
    advice = "Call it by its address, or add the name to KEYSCALE_ALLOWED_HOSTS."


class OriginNotAllowedError(ApiError):
    """A page of another origin sent the control plane's cookie."""

    code = "ORIGIN_NOT_ALLOWED"
    title = "Pages of other sites may not call the API"
    status = 403
    domain = "user"
    advice = "Send the token in the Authorization header."


class BodyTooLargeError(ApiError):
    """A request's body is larger than this path accepts."""

    code = "BODY_TOO_LARGE"
    title = "The request's body is too large"
    status = 413
    domain = "user"
    advice = (
        "Send less: an artifact should not contain data, and libraries are separate artifacts, one per wheel. Send a"
        " long list of state changes in parts, each derived from the savepoint of the part before (`checkpoint_id`)."
    )


class TooManyInFlightError(ApiError):
    """Too many uploads, streams or other costly requests are in progress.

    Costly requests are uploads, plans, checks of programs, verifications, streams, log searches and snapshots.
    """

    code = "TOO_MANY_IN_FLIGHT"
    title = "Too many of these are in progress"
    status = 429
    domain = "user"
    retryable = True
    advice = "Wait until some of these requests have ended, and send the request again."


# --- artifacts ------------------------------------------------------------------------------------------------------


class ArtifactNotFoundError(ApiError):
    """No artifact has this id."""

    code = "ARTIFACT_NOT_FOUND"
    title = "The artifact does not exist"
    status = 404
    domain = "user"
    advice = "`./keyscale artifacts list` lists all artifacts. Over HTTP: GET /v1/artifacts."


class ArtifactInvalidError(ApiError):
    """The file is not a valid Python file, zip, wheel or jar."""

    code = "ARTIFACT_INVALID"
    title = "The file is not a valid Python file, zip, wheel or jar"
    status = 422
    domain = "user"
    advice = (
        "Upload a .py file that Python can compile, a .zip with a main.py or with modules, a .whl for the platform's "
        "Python and system, or a .jar. `./keyscale artifacts upload --requirements FILE` finds wheels that fit."
    )


class ArtifactNotRunnableError(ApiError):
    """A job cannot run this artifact, because it contains no program."""

    code = "ARTIFACT_NOT_RUNNABLE"
    title = "A job cannot run this artifact"
    status = 422
    domain = "user"
    advice = "Use a .py file, or a .zip with a main.py or __main__.py at its root."


class ArtifactInUseError(ApiError):
    """An artifact that a job's revision uses cannot be deleted."""

    code = "ARTIFACT_IN_USE"
    title = "A job uses this artifact"
    status = 409
    domain = "user"
    advice = "`detail` names the job. Its revisions keep their artifacts for a rollback: delete the job first."


class LibraryInvalidError(ApiError):
    """A job cannot have this library.

    It is not an importable module or a package of the platform, or the job has too many libraries.
    """

    code = "LIBRARY_INVALID"
    title = "A job cannot have this library"
    status = 422
    domain = "user"
    advice = (
        "A .py library is imported by its file's name, which must be a module's name. A package is named"
        " `package:NAME`; `detail` lists the available packages."
    )


class LibraryClashError(ApiError):
    """A library has the name of another package or module.

    The other package belongs to the platform, to Python, or to another library of the job.
    """

    code = "LIBRARY_CLASH"
    title = "Two packages or modules have the same name"
    status = 422
    domain = "user"
    advice = (
        "Leave the library out and use the platform's version, which `detail` names; or rename your own module. A job"
        " can have only one of two libraries with the same modules."
    )


class LibraryRequirementError(ApiError):
    """A wheel needs a package that is missing or has another version."""

    code = "LIBRARY_REQUIREMENT_MISSING"
    title = "A library needs a missing package"
    status = 422
    domain = "user"
    advice = (
        "Add a wheel of each package that `detail` names. `./keyscale artifacts upload --requirements FILE` uploads"
        " wheels with all their requirements."
    )


class LibraryUnavailableError(ApiError):
    """A library cannot be copied to the host that runs the driver."""

    code = "LIBRARY_UNAVAILABLE"
    title = "A library cannot be copied to this host"
    status = 503
    domain = "external"
    retryable = True
    advice = "`detail` says why. Make room in KEYSCALE_HOME, or upload the library again and name the new artifact."


class JarNotAllowedError(ApiError):
    """A job may not bring this jar."""

    code = "JAR_NOT_ALLOWED"
    title = "A job may not bring this jar"
    status = 403
    domain = "user"
    advice = (
        "Ask an administrator to add the jar's file name or SHA-256, which `detail` names, to KEYSCALE_JARS_ALLOWED."
    )


# --- jobs -----------------------------------------------------------------------------------------------------------


class JobNotFoundError(ApiError):
    """No job has this id or name."""

    code = "JOB_NOT_FOUND"
    title = "The job does not exist"
    status = 404
    domain = "user"
    advice = "Use the id or the name of a job. `./keyscale jobs list` lists all jobs. Over HTTP: GET /v1/jobs."


class JobNameTakenError(ApiError):
    """Two jobs cannot have the same name."""

    code = "JOB_NAME_TAKEN"
    title = "A job already has this name"
    status = 409
    domain = "user"
    advice = "Choose another name, or delete that job."


class JobRecordInvalidError(ApiError):
    """A job cannot be rebuilt from its record in the object store."""

    code = "JOB_RECORD_INVALID"
    title = "The job cannot be rebuilt from its record"
    status = 422
    domain = "external"
    advice = (
        "Restore the object that `detail` names from a backup of the object store, and run `./keyscale recover` again."
        " Without one, the job's savepoints stay: create a job with the same program, with targets of its own for its"
        " sinks, and start it from the location of a savepoint."
    )


class ReportInvalidError(ApiError):
    """A driver's report cannot be true of its attempt.

    An example is a checkpoint of another job.
    """

    code = "REPORT_INVALID"
    title = "The report cannot be true"
    status = 422
    domain = "internal"
    advice = "Nothing was stored. If the job's code does not send its own reports, this is a defect: report it."


class JobLimitError(ApiError):
    """A job asks for more resources than the platform's limits allow.

    Resources are cores, memory, executors and subtasks.
    """

    code = "JOB_LIMIT_EXCEEDED"
    title = "The job asks for more than the limits allow"
    status = 422
    domain = "user"
    advice = "Ask for less, or raise the limit: docs/configuration.md lists the settings KEYSCALE_JOB_..._MAX."


class SecretUnknownError(ApiError):
    """A job names a secret that the user's platform or scope lacks."""

    code = "SECRET_UNKNOWN"
    title = "The secret does not exist"
    status = 422
    domain = "user"
    advice = (
        "Set KEYSCALE_JOB_SECRET_<NAME> in the control plane's environment, or write a file of this name to its "
        "KEYSCALE_JOB_SECRETS_DIRECTORY. A user with a scope may name only secrets with labels of the scope: "
        "`./keyscale secrets list` lists them."
    )


class JobStatusConflictError(ApiError):
    """The job's present status does not allow the requested action."""

    code = "JOB_STATUS_CONFLICT"
    title = "The job's status does not allow this"
    status = 409
    domain = "user"
    retryable = True
    advice = (
        "`detail` names the status and the command that helps. Over HTTP: POST /v1/jobs/{id}/start, /stop or /cancel, "
        "and GET /v1/jobs/{id} until `status` allows it."
    )


class ParallelismInvalidError(ApiError):
    """A parallelism is below 1 or above the job's max parallelism."""

    code = "PARALLELISM_OUT_OF_RANGE"
    title = "The parallelism is out of range"
    status = 422
    domain = "user"
    advice = (
        "Parallelism is from 1 to the job's max parallelism, which is fixed when the job is created (at most 32768). "
        "For more, clone the job from a savepoint with another max parallelism: docs/guide/repair-state.md says how."
    )


class SettingFixedError(ApiError):
    """A change names another value of a setting that a job keeps."""

    code = "SETTING_FIXED"
    title = "A job keeps this setting"
    status = 422
    domain = "user"
    advice = (
        "Leave the setting out. For another max parallelism or hash, write a changed copy of a savepoint (`./keyscale "
        "state transform LOCATION TARGET --max-parallelism N`), and clone the job from it (`./keyscale jobs clone JOB "
        "NAME --from TARGET`)."
    )


class SparkConfNotAllowedError(ApiError):
    """A job sets a Spark setting that jobs may not set."""

    code = "SPARK_CONF_NOT_ALLOWED"
    title = "A job may not set this Spark setting"
    status = 422
    domain = "user"
    advice = (
        "A job may choose settings of memory, cores and timeouts, which docs/configuration.md lists, and settings that"
        " an administrator allows by KEYSCALE_SPARK_CONF_ALLOWED."
    )


# --- operations -----------------------------------------------------------------------------------------------------


class OperationNotFoundError(ApiError):
    """No operation has this id."""

    code = "OPERATION_NOT_FOUND"
    title = "The operation does not exist"
    status = 404
    domain = "user"
    advice = (
        "Use the `id` from the answer to your request; `./keyscale operations list JOB` lists the operations of a job."
    )


class OperationIdTakenError(ApiError):
    """A client-supplied operation id already belongs to another operation."""

    code = "OPERATION_ID_TAKEN"
    title = "This operation id belongs to another operation"
    status = 409
    domain = "user"
    advice = "Send a new id for a new operation; use the same id only to repeat the same request."


class CheckpointNotFoundError(ApiError):
    """The job has no checkpoint with this number."""

    code = "CHECKPOINT_NOT_FOUND"
    title = "The job has no such checkpoint"
    status = 404
    domain = "user"
    advice = "`./keyscale checkpoints list JOB` lists its checkpoints. Over HTTP: GET /v1/jobs/{id}/checkpoints."


class SavepointNotFoundError(ApiError):
    """The job has no savepoint with this id."""

    code = "SAVEPOINT_NOT_FOUND"
    title = "The job has no such savepoint"
    status = 404
    domain = "user"
    advice = "`./keyscale savepoints list JOB` lists its savepoints. Over HTTP: GET /v1/jobs/{id}/savepoints."


class SavepointIdTakenError(ApiError):
    """The job has a savepoint with the id of a new one."""

    code = "SAVEPOINT_ID_TAKEN"
    title = "The job has a savepoint of this id"
    status = 409
    domain = "user"
    advice = (
        "Choose another id. A request that repeats the id, the checkpoint and the changes of an earlier request gets"
        " the earlier answer. `./keyscale savepoints list JOB` lists the job's savepoints."
    )


class RevisionNotFoundError(ApiError):
    """The job has no revision with this number."""

    code = "REVISION_NOT_FOUND"
    title = "The job has no such revision"
    status = 404
    domain = "user"
    advice = "`./keyscale revisions list JOB` lists its revisions. Over HTTP: GET /v1/jobs/{id}/revisions."


class OperationInProgressError(ApiError):
    """Another operation changes the job.

    Attributes:
        operation_id: The operation.
    """

    code = "OPERATION_IN_PROGRESS"
    title = "Another operation changes the job"
    status = 409
    domain = "user"
    retryable = True
    advice = (
        "`detail` names the command that waits for its end, and `operation_id` the operation: "
        "`./keyscale operations watch ID` follows it, `./keyscale operations cancel ID` cancels it."
    )

    def __init__(self, detail: str = "", operation_id: str | None = None) -> None:
        super().__init__(detail)
        self.operation_id = operation_id

    @property
    def more(self) -> dict[str, Any]:
        return {"operation_id": self.operation_id}


class RevisionConflictError(ApiError):
    """A change names an outdated revision of the job."""

    code = "REVISION_CONFLICT"
    title = "The job has another revision now"
    status = 412
    domain = "user"
    advice = (
        "Look at the current revision (`./keyscale revisions list JOB`), and change the job again. Over HTTP: "
        "`revision` is the current revision; read it (GET /v1/jobs/{id}), and send its ETag in If-Match."
    )

    def __init__(self, detail: str = "", revision: int = 0) -> None:
        super().__init__(detail)
        self.revision = revision

    @property
    def more(self) -> dict[str, Any]:
        return {"revision": self.revision}


class RevisionRequiredError(ApiError):
    """A change does not say which revision it changes."""

    code = "REVISION_REQUIRED"
    title = "The change does not name its revision"
    status = 428
    domain = "user"
    advice = (
        "Send the ETag of GET /v1/jobs/{id} in the header If-Match, so that the change cannot overwrite another user's"
        " change."
    )


class LastStateTooOldError(ApiError):
    """The job's latest checkpoint is older than the upgrade allows.

    The upgrade takes the last state.
    """

    code = "LAST_STATE_TOO_OLD"
    title = "The latest checkpoint is too old"
    status = 409
    domain = "user"
    retryable = True
    advice = "Wait for a newer checkpoint, allow an older one with last_state_age_ms_max, or upgrade from a savepoint."


class RevisionWithoutSavepointError(ApiError):
    """The replaced revision has no savepoint, so rollback is impossible.

    The platform keeps the savepoint of the last upgrade or rollback. Earlier ones stay if a user has kept them.
    """

    code = "REVISION_WITHOUT_SAVEPOINT"
    title = "The revision has no savepoint"
    status = 409
    domain = "user"
    advice = (
        "Keep the present state with `--state current` (`./keyscale jobs rollback JOB 1 --state current`). Or "
        "stop the job, roll it back like this, and start it from another savepoint (`./keyscale jobs start JOB --from "
        "ID`)."
    )


class RestoreSourceError(ApiError):
    """A job cannot start from the requested checkpoint or savepoint."""

    code = "RESTORE_SOURCE_INVALID"
    title = "The job cannot start from this checkpoint or savepoint"
    status = 422
    domain = "user"
    advice = (
        "`detail` says why. The snapshot must be COMPLETED, with the job's own max parallelism, hash and store; only a "
        "clone takes another max parallelism or hash (`./keyscale jobs clone JOB NAME --from LOCATION`). "
        "`./keyscale checkpoints list JOB` and `./keyscale savepoints list JOB` list the job's snapshots. Over HTTP: "
        "GET /v1/jobs/{id}/checkpoints and GET /v1/jobs/{id}/savepoints."
    )


class OutputWithdrawnError(ApiError):
    """The job's sinks have taken output of the snapshot back."""

    code = "RESTORE_OUTPUT_WITHDRAWN"
    title = "The job's sinks have taken back output of this snapshot"
    status = 422
    domain = "user"
    advice = (
        "The job went back to an earlier snapshot, and its sinks have deleted the later rows for good. Start the job "
        "from a snapshot that was taken since then, or from an earlier one. To continue from this snapshot, create a "
        "clone with a target of its own for each sink: `./keyscale jobs create COPY --from-job JOB --from SNAPSHOT`."
    )


class OperationNotCancellableError(ApiError):
    """An operation cannot be cancelled, or not any more."""

    code = "OPERATION_NOT_CANCELLABLE"
    title = "The operation cannot be cancelled"
    status = 409
    domain = "user"
    advice = (
        "`detail` says why. To take back a change that has ended, make another change: `./keyscale rescale JOB N` to"
        " the old parallelism, or `./keyscale jobs rollback JOB REVISION`."
    )


class ApprovalRequiredError(ApiError):
    """A request changes or deletes a job whose changes need an approval."""

    code = "APPROVAL_REQUIRED"
    title = "Changes of the job need an approval"
    status = 409
    domain = "user"
    advice = (
        "Request the change with `./keyscale jobs update JOB --parallelism N`, or before a deletion or a start with"
        " options `./keyscale jobs update JOB --set approval=NONE`; another user approves it."
    )


class OwnApprovalError(ApiError):
    """A user approves a change that the same user has requested."""

    code = "OWN_APPROVAL"
    title = "Another user has to approve the change"
    status = 403
    domain = "user"
    advice = "Another user with the role operator approves it: `./keyscale operations approve ID`."


class ApprovalRefusedError(ApiError):
    """An operation cannot be approved, or not any more."""

    code = "APPROVAL_REFUSED"
    title = "The operation cannot be approved"
    status = 409
    domain = "user"
    advice = (
        "`./keyscale operations cancel ID` ends a change that waits; if the job has changed since, request the change"
        " again. `detail` says why."
    )


class ParallelismUnchangedError(ApiError):
    """A rescale requests the parallelism that the job already has."""

    code = "PARALLELISM_UNCHANGED"
    title = "The job already has this parallelism"
    status = 409
    domain = "user"
    advice = "Request another parallelism."


class ChangeIncompatibleError(ApiError):
    """A running job's change cannot take over its state.

    Or it would drop state without permission.
    """

    code = "CHANGE_INCOMPATIBLE"
    title = "The changed job does not fit its stored state"
    status = 409
    domain = "user"
    advice = (
        "`detail` names each difference, and `./keyscale jobs plan JOB` shows the whole plan. Declare the state as it "
        "is stored or under another name; --allow-non-restored-state permits dropping state; --upgrade-mode stateless "
        "begins without state. Over HTTP: the same request with `dry_run`, and its fields "
        "allow_non_restored_state and upgrade_mode."
    )


class PlanTimeoutError(ApiError):
    """A program was not loaded, or state not read, in time."""

    code = "PLAN_TIMEOUT"
    title = "The plan or check takes too long"
    status = 504
    domain = "user"
    retryable = True
    advice = (
        "Send the request again when the host is less busy, or raise KEYSCALE_PLAN_TIMEOUT_MS. A script must reach"
        " env.execute() without waiting for anything. An upgrade with plan_first=false (`--no-plan-first`) is applied"
        " without a plan."
    )


class StateReadError(ApiError):
    """State cannot be read as requested."""

    code = "STATE_READ_REFUSED"
    title = "The state cannot be read as requested"
    status = 422
    domain = "user"
    advice = (
        "`detail` begins with the code of the cause, which docs/errors.md explains. A key of one column is written as"
        " text, a key of several columns as a JSON list. `./keyscale state tables LOCATION` lists operators and states."
    )


class StateChangeError(ApiError):
    """State cannot be changed as requested."""

    code = "STATE_CHANGE_REFUSED"
    title = "The state cannot be changed as requested"
    status = 422
    domain = "user"
    advice = (
        "`detail` begins with the code of the cause, which docs/errors.md explains, and names a change of a list by its"
        " number. No change took effect. `./keyscale state get JOB` shows the state of a key."
    )


class StateReadTimeoutError(ApiError):
    """A read of state takes too long."""

    code = "STATE_READ_TIMEOUT"
    title = "The read takes too long"
    status = 504
    domain = "user"
    retryable = True
    advice = (
        "Send the request again when the host is less busy. For large state take a savepoint and use `./keyscale state"
        " sql LOCATION`, which has a limit of your own."
    )


class ProgramUnloadableError(ApiError):
    """The process that loads a program ended without an answer.

    A lack of memory can be the cause.
    """

    code = "PROGRAM_UNLOADABLE"
    title = "The program cannot be loaded"
    status = 422
    domain = "user"
    advice = (
        "`detail` has the last line of the process. The program may take at most 8 GiB, and Spark's heap 1 GiB. An"
        " upgrade with plan_first=false (`--no-plan-first`) is applied without a plan."
    )


class AttemptOverError(ApiError):
    """A driver's attempt has ended or was replaced: the driver must end."""

    code = "ATTEMPT_OVER"
    title = "The attempt is over"
    status = 410
    domain = "external"
    advice = "Nothing is wrong: another attempt runs the job, or the job has ended."


class StoreRoleMissingError(ApiError):
    """A driver asks for store credentials that the platform does not grant."""

    code = "STORE_ROLE_MISSING"
    title = "The platform grants no credentials"
    status = 404
    domain = "external"
    advice = "Set KEYSCALE_STORE_ROLE, or start the job again: its driver then has the control plane's credentials."


class AttemptNotFoundError(ApiError):
    """The job has no attempt with this number."""

    code = "ATTEMPT_NOT_FOUND"
    title = "The job has no such attempt"
    status = 404
    domain = "user"
    advice = "`./keyscale jobs show JOB` shows its present attempt. Over HTTP: GET /v1/jobs/{id}/attempts lists all."


class SnapshotNeededError(ApiError):
    """A checkpoint or savepoint that is needed or missing is not deleted."""

    code = "SNAPSHOT_NEEDED"
    title = "The checkpoint or savepoint is not deleted"
    status = 409
    domain = "user"
    advice = (
        "`detail` names what needs it. The newest checkpoint can be deleted once a newer one exists; the dry run"
        " (`./keyscale checkpoints delete JOB N --dry-run`) shows the reasons at any time."
    )


class VerificationNotFoundError(ApiError):
    """The checkpoint was never verified."""

    code = "VERIFICATION_NOT_FOUND"
    title = "The checkpoint was never verified"
    status = 404
    domain = "user"
    advice = (
        "`./keyscale checkpoints verify JOB N` verifies it. Over HTTP: POST "
        "/v1/jobs/{id}/checkpoints/{checkpoint_id}/verify."
    )


class LogNotHereError(ApiError):
    """The driver's log was deleted or is on an unavailable host."""

    code = "LOG_NOT_HERE"
    title = "The log cannot be read"
    status = 404
    domain = "user"
    advice = (
        "If `detail` names a host, start a control plane there again, or read "
        "`<home>/runs/<job-id>/<attempt>/driver.log` on it. A log that was deleted is gone."
    )


class DiagnosticNotFoundError(ApiError):
    """The job has no diagnostic with this id.

    A diagnostic is deleted an hour after its request.
    """

    code = "DIAGNOSTIC_NOT_FOUND"
    title = "The diagnostic does not exist"
    status = 404
    domain = "user"
    advice = "Request it again. Over HTTP: GET /v1/jobs/{id}/diagnostics lists the latest diagnostics."


class DiagnosticUnansweredError(ApiError):
    """The driver has not answered a request to look into its job."""

    code = "DIAGNOSTIC_UNANSWERED"
    title = "The driver has not answered"
    status = 504
    domain = "external"
    retryable = True
    advice = (
        "Request it again. If the driver reports nothing else either, send its process SIGUSR1, which writes the "
        "stacks into the log; the host and the process are in `status.attempt` of `./keyscale jobs show JOB --json`."
    )


# --- database, object store, reconciler, settings -------------------------------------------------------------------


class DatabaseUnavailableError(ApiError):
    """PostgreSQL does not answer. Running jobs are not affected."""

    code = "DATABASE_UNAVAILABLE"
    title = "The database does not answer"
    status = 503
    domain = "external"
    retryable = True
    advice = "Running jobs continue. Start PostgreSQL again; the control plane reconnects by itself."


class DatabaseBusyError(ApiError):
    """PostgreSQL cancelled the request because it blocked another request."""

    code = "DATABASE_BUSY"
    title = "The request blocked another request"
    status = 503
    domain = "external"
    retryable = True
    advice = "Nothing was changed. Send the request again."


class DatabaseSlowError(ApiError):
    """A database statement exceeded its time limit.

    PostgreSQL answers, but not fast enough.
    """

    code = "DATABASE_SLOW"
    title = "The database took too long"
    status = 503
    domain = "external"
    retryable = True
    advice = "Nothing was changed. Send the request again; if this repeats, check PostgreSQL for load or locks."


class StoreUnavailableError(ApiError):
    """The object store does not answer, or refuses access."""

    code = "STORE_UNAVAILABLE"
    title = "The object store cannot be used"
    status = 503
    domain = "external"
    retryable = True
    advice = (
        "Check KEYSCALE_STORE_URL, the store's endpoint and credentials, and that it is running. The job is unchanged."
    )


class ReconcilerDownError(ApiError):
    """The reconciler has not finished a round for a while.

    Jobs are not started, restarted or rescaled.
    """

    code = "RECONCILER_DOWN"
    title = "The reconciler is not working"
    status = 503
    domain = "internal"
    retryable = True
    advice = (
        "Running jobs continue. If the database answers, read the control plane's log and restart the control plane."
    )


class LeaderMissingError(ApiError):
    """No replica leads.

    Jobs are not started, restarted or rescaled.
    """

    code = "LEADER_MISSING"
    title = "No replica of the control plane leads"
    status = 503
    domain = "internal"
    retryable = True
    advice = "Running jobs continue. A new leader is elected within 30 seconds. If not, read the replicas' logs."


class LeadershipLostError(ApiError):
    """A former leader tried to write although another replica leads now.

    The write had no effect.
    """

    code = "LEADERSHIP_LOST"
    title = "Another replica leads"
    status = 503
    domain = "internal"
    retryable = True
    advice = "Nothing is wrong: the replica was stopped or disconnected for a while, and the new leader continues."


class JobUserError(ApiError):
    """A job's system user or one of its directories cannot be used.

    The user cannot be made, or a directory is not in the expected state.
    """

    code = "JOB_USER_UNAVAILABLE"
    title = "The job cannot run as its own user"
    status = 500
    domain = "external"
    retryable = True
    advice = (
        "`detail` names the user or directory. Set KEYSCALE_JOB_USERS to a larger range, or to numbers without"
        " accounts, and remove the file or account in the way."
    )


class SettingInvalidError(ApiError):
    """An environment variable of the control plane has an invalid value."""

    code = "SETTING_INVALID"
    title = "A setting of the control plane is not valid"
    domain = "user"
    advice = "Correct the named environment variable and start again."
