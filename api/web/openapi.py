"""The OpenAPI document of FastAPI, with the refusals of each route.

Refusals follow from the route's method, parameters and tag.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .. import errors
from ..problem import ProblemAnswer
from ..shapes import NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_ROUNDED = {2.0**63: NUMBER_MAX, -(2.0**63): -NUMBER_MAX}
"""Bounds that a float does not hold."""
_STORABLE = r"^[^\x00]*$"
_NARROWED = {"pattern", "enum", "const", "contentMediaType"}
_SCHEMAS = "#/components/schemas/"
_PROBLEM = "#/components/schemas/ProblemAnswer"
_OF_ALL = (
    errors.HttpInvalidError,
    errors.HostNotAllowedError,
    errors.BodyTooLargeError,
    errors.DatabaseUnavailableError,
    errors.RateLimitedError,
    errors.DatabaseBusyError,
    errors.DatabaseSlowError,
)
_OF_TOKENS = (
    errors.TokenMissingError,
    errors.TokenExpiredError,
    errors.TokenRevokedError,
    errors.RoleTooLowError,
    errors.RoleMissingError,
    errors.IssuerUnavailableError,
)
_OF_CHANGES = (errors.OriginNotAllowedError, errors.OutOfScopeError, errors.TooManyInFlightError)
_OF_PARAMETERS: dict[str, tuple[type[errors.ApiError], ...]] = {
    "job_id": (errors.JobNotFoundError,),
    "artifact_id": (errors.ArtifactNotFoundError,),
    "checkpoint_id": (errors.CheckpointNotFoundError,),
    "savepoint_id": (errors.SavepointNotFoundError,),
    "revision": (errors.RevisionNotFoundError,),
    "diagnostic_id": (errors.DiagnosticNotFoundError,),
    "operation_id": (errors.OperationNotFoundError,),
    "token_id": (errors.TokenNotFoundError,),
    "subscription_id": (errors.SubscriptionNotFoundError,),
    "secret": (),
    "operator": (errors.StateReadError, errors.StateReadTimeoutError),
    "state": (),
    "attempt": (errors.AttemptNotFoundError, errors.LogNotHereError),
}
_OF_JOB_CHANGES = (
    errors.JobStatusConflictError,
    errors.OperationInProgressError,
    errors.OperationIdTakenError,
)
_OF_SPECIFICATIONS = (
    errors.ArtifactNotFoundError,
    errors.ArtifactNotRunnableError,
    errors.ParallelismInvalidError,
    errors.SettingFixedError,
    errors.SparkConfNotAllowedError,
    errors.JobLimitError,
    errors.SecretUnknownError,
)
_OF_DELETIONS = (errors.SnapshotNeededError, errors.StoreUnavailableError, errors.PlanTimeoutError)
_OF_CHANGED: dict[str, tuple[type[errors.ApiError], ...]] = {
    "artifacts": (errors.ArtifactInUseError, errors.ArtifactInvalidError),
    "jobs": (
        *_OF_JOB_CHANGES,
        errors.JobNameTakenError,
        *_OF_SPECIFICATIONS,
        errors.StoreUnavailableError,
        errors.SecretUnknownError,
        errors.PlanTimeoutError,
        errors.ProgramUnloadableError,
    ),
    "operations": (
        *_OF_JOB_CHANGES,
        *_OF_SPECIFICATIONS,
        errors.StoreUnavailableError,
        errors.RestoreSourceError,
        errors.ParallelismUnchangedError,
        errors.RevisionNotFoundError,
        errors.RevisionConflictError,
        errors.RevisionRequiredError,
        errors.LastStateTooOldError,
        errors.RevisionWithoutSavepointError,
        errors.ChangeIncompatibleError,
        errors.PlanTimeoutError,
        errors.ProgramUnloadableError,
        errors.OperationNotCancellableError,
        errors.ApprovalRequiredError,
        errors.ApprovalRefusedError,
        errors.OwnApprovalError,
    ),
    "checkpoints": (*_OF_JOB_CHANGES, *_OF_DELETIONS),
    "savepoints": (*_OF_JOB_CHANGES, *_OF_DELETIONS),
    "state": (
        errors.JobStatusConflictError,
        errors.CheckpointNotFoundError,
        errors.SavepointIdTakenError,
        errors.StateReadError,
        errors.StateChangeError,
        errors.StateReadTimeoutError,
        errors.StoreUnavailableError,
        errors.TooManyInFlightError,
    ),
    "diagnostics": (errors.JobStatusConflictError,),
    "tokens": (errors.TokenNameTakenError,),
    "secrets": (),
    "subscriptions": (errors.SubscriptionRefusedError,),
}
_OF_ENDS: dict[str, tuple[type[errors.ApiError], ...]] = {
    "check": (*_OF_SPECIFICATIONS, errors.PlanTimeoutError, errors.ProgramUnloadableError),
    "compare": (errors.TooManyInFlightError,),
    "verification": (errors.VerificationNotFoundError,),
}
"""The refusals of routes by the last part of their paths."""
_OF_HEALTH = (errors.StoreUnavailableError, errors.ReconcilerDownError, errors.LeaderMissingError)


def describe(app: FastAPI) -> dict[str, Any]:
    """Returns the document.

    It names every status that a route may answer, except 500, which is a defect.
    """
    document = app.openapi()
    schemas = document["components"]["schemas"]
    form = ProblemAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update({**form.pop("$defs"), "ProblemAnswer": form})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own form of refusals
        schemas.pop(unused, None)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _leave_out_null_body(operation)
            operation["responses"].get("200", {}).get("content", {}).get("text/event-stream", {}).pop("schema", None)
            refused = defaultdict(list)
            for error in _refusals(path, method, operation):
                refused[error.status].append(error)
            responses = operation["responses"]
            responses.pop("422", None)
            responses.update({str(status): _response(refused[status]) for status in sorted(refused)})
    _write_whole_bounds(document)
    _exclude_nul(document)
    return document


def _write_whole_bounds(part: Any) -> None:
    """Writes the bounds of integers as integers, which FastAPI makes floats."""
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _write_whole_bounds(each)
    if isinstance(part, dict):
        for name in _BOUNDS & part.keys():
            if isinstance(part[name], float) and part[name].is_integer():
                part[name] = _ROUNDED.get(part[name], int(part[name]))


def _exclude_nul(document: dict[str, Any]) -> None:
    """Describes that texts in bodies hold no NUL, which cannot be stored."""
    schemas = document["components"]["schemas"]
    operations = (operation for methods in document["paths"].values() for operation in methods.values())
    waiting: list[Any] = [operation.get("requestBody") for operation in operations]
    seen = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
            name = str(part.get("$ref", "")).removeprefix(_SCHEMAS)
            if name and name not in seen:
                seen.add(name)
                waiting.append(schemas[name])
            if part.get("type") == "string" and not _NARROWED & part.keys():
                part["pattern"] = _STORABLE
            if isinstance(part.get("additionalProperties"), dict):
                part["propertyNames"] = {"pattern": _STORABLE}


def _leave_out_null_body(operation: dict[str, Any]) -> None:
    """Describes an optional body by its model, without a null.

    Generated clients send no body rather than a null.
    """
    for content in operation.get("requestBody", {}).get("content", {}).values():
        if "anyOf" in content["schema"]:
            content["schema"] = content["schema"]["anyOf"][0]


def _refusals(path: str, method: str, operation: dict[str, Any]) -> Iterator[type[errors.ApiError]]:
    yield from _OF_ALL
    if path == "/health":
        yield from _OF_HEALTH
        return
    yield from _OF_TOKENS
    parameters = operation.get("parameters", [])
    if parameters or "requestBody" in operation:
        yield errors.RequestInvalidError
    if any(parameter["name"] == "after" for parameter in parameters):
        yield errors.CursorInvalidError
    if "{" in path:
        yield errors.RouteNotFoundError
    for parameter in parameters:
        if parameter["in"] == "path" or parameter["name"] in _OF_PARAMETERS:
            yield from _OF_PARAMETERS[parameter["name"]]
    if operation["tags"][0] == "streams":
        yield errors.TooManyInFlightError
    yield from _OF_ENDS.get(path.rpartition("/")[2], ())
    if method != "get":
        yield from _OF_CHANGES
        yield from _OF_CHANGED[operation["tags"][0]]


def _response(refusals: list[type[errors.ApiError]]) -> dict[str, Any]:
    unique = dict.fromkeys(refusals)
    return {
        "description": "; ".join(f"`{error.code}`: {error.title}" for error in unique),
        "content": {"application/problem+json": {"schema": {"$ref": _PROBLEM}}},
    }
