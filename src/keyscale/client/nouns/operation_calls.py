"""Operations: long actions on a job, with one id."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from keyscale.api.operations.schemas.operation import OperationAnswer, OperationList
from keyscale.vocabulary import OperationStatus

from ..call import PLAN_TIMEOUT_S, Call, Pages, Pause, Steps, Stream
from ..errors import OperationFailedError, WaitTimeoutError
from ..method import ListMethod, Method, Noun, S, StreamMethod, identified

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.api.operations.schemas.operation import OperationRequest
    from keyscale.vocabulary import OperationKind

OPERATION = "/v1/operations/{operation_id}"
OPERATIONS = "/v1/jobs/{job_id}/operations"
POLL_S = 0.2


class Operations(Noun[S]):
    """Operations. Each method takes an operation's id."""

    @Method
    def get(self, operation: str) -> Call[OperationAnswer]:
        """Shows an operation."""
        return show(operation)

    @ListMethod
    def list(
        self,
        job: str,
        *,
        kind: Sequence[OperationKind] | None = None,
        status: Sequence[OperationStatus] | None = None,
        limit: int | None = None,
    ) -> Pages[OperationAnswer]:
        """Lists a job's operations, the newest first."""
        query = {"kind": kind, "status": status, "limit": limit}
        return Pages(Call("GET", OPERATIONS, OperationList, {"job_id": job}, query), "operations")

    @Method
    def request(
        self, job: str, kind: OperationKind, arguments: OperationRequest, *, revision: int | None = None
    ) -> Call[OperationAnswer]:
        """Requests an operation of any kind.

        An upgrade is for one revision of the job; `client.jobs` has a method for each kind.
        """
        return Call(
            "POST",
            OPERATIONS,
            OperationAnswer,
            {"job_id": job},
            body={**identified(arguments).model_dump(mode="json", exclude_unset=True), "kind": kind},
            if_match="*" if revision is None else f'"{revision}"',
            is_repeatable=True,
            timeout_s=PLAN_TIMEOUT_S,
        )

    @Method
    def cancel(self, operation: str) -> Call[OperationAnswer]:
        """Cancels a change; the job stays unchanged."""
        return Call("POST", f"{OPERATION}/cancel", OperationAnswer, {"operation_id": operation}, is_repeatable=True)

    @Method
    def approve(self, operation: str) -> Call[OperationAnswer]:
        """Approves a change that another user has requested, and begins it."""
        return Call("POST", f"{OPERATION}/approve", OperationAnswer, {"operation_id": operation}, is_repeatable=True)

    @Method
    def wait(self, operation: str, timeout_s: float | None = None) -> Steps[OperationAnswer]:
        """Waits until an operation is COMPLETED, and returns it.

        Raises:
            OperationFailedError: The operation ended without success.
            WaitTimeoutError: The time is over; the operation continues.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            answer: OperationAnswer = yield show(operation)
            if answer.status is OperationStatus.COMPLETED:
                return answer
            if _has_ended(answer):
                raise OperationFailedError(_why(answer))
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"after {timeout_s:g} s {answer.kind} is still {answer.status}")
            yield Pause(POLL_S)

    @StreamMethod
    def stream(self, operation: str) -> Stream[OperationAnswer]:
        """Yields an operation at each of its changes, until it has ended."""
        call = Call("GET", f"{OPERATION}/stream", object, {"operation_id": operation})
        return Stream(call, _operation, _has_ended)


def show(operation: str) -> Call[OperationAnswer]:
    """Returns the call that shows an operation."""
    return Call("GET", OPERATION, OperationAnswer, {"operation_id": operation})


def _operation(_: str, data: Any) -> OperationAnswer:
    return OperationAnswer.model_validate(data)


def _has_ended(operation: OperationAnswer) -> bool:
    return operation.status is None or operation.status.has_ended


def _why(operation: OperationAnswer) -> str:
    failure = operation.failure
    reason = "no reason was given" if failure is None else f"{failure.code} {failure.message}"
    return f"{operation.kind} ended as {operation.status}: {reason}"
