"""Operations as an OTLP document of traces. Pure.

All times of an operation are in the database, so its trace is made when it has ended, whatever processes took part:

    request > operation > its phases, and the new attempt > first batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.vocabulary import OperationStatus

from .otlp_values import attributes, nanoseconds, resource, span_id, trace_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyscale.db.models import Attempt, Operation

_INTERNAL, _SERVER = 1, 2
_OK, _ERROR = 1, 2
_STATUS_CODES = {OperationStatus.COMPLETED: _OK, OperationStatus.FAILED: _ERROR}


@dataclass(frozen=True, slots=True)
class EndedOperation:
    """An operation that has ended.

    Attributes:
        operation: The operation.
        job_name: The name of its job.
        attempt: The attempt that it has started, if any.
        request_id: The id of its request, if known.
    """

    operation: Operation
    job_name: str
    attempt: Attempt | None
    request_id: str | None


def trace_document(ended: Iterable[EndedOperation], instance: str) -> dict[str, Any]:
    """Returns the document of the traces of operations.

    `instance` is the replica that pushes them.
    """
    spans = [span for each in ended for span in _spans(each)]
    scope = {"scope": {"name": "keyscale"}, "spans": spans}
    return {"resourceSpans": [{"resource": resource(instance), "scopeSpans": [scope]}]}


def _spans(ended: EndedOperation) -> Iterator[dict[str, Any]]:
    operation, attempt = ended.operation, ended.attempt
    begun_ms, done_ms = operation.requested_at_ms, operation.ended_at_ms or operation.requested_at_ms
    known = {"keyscale.job_id": operation.job_id, "keyscale.job_name": ended.job_name}
    make = _SpanMaker(operation.id, {**known, "keyscale.operation_id": operation.id})
    by = {"keyscale.request_id": ended.request_id, "enduser.id": operation.requested_by}
    yield {**make.span("request", f"request {operation.kind}", None, begun_ms, begun_ms, **by), "kind": _SERVER}
    failure = operation.failure or {}
    shown = {"keyscale.status": operation.status, "error.type": failure.get("code")}
    root = make.span("operation", f"{operation.kind} {ended.job_name}", "request", begun_ms, done_ms, **shown)
    status = {"code": _STATUS_CODES.get(operation.status, 0), "message": failure.get("message") or ""}
    yield {**root, "status": status}
    for number, phase in enumerate(operation.phases or ()):
        ended_ms = phase["ended_at_ms"] or done_ms
        yield make.span(f"phase {number}", str(phase["phase"]), "operation", phase["started_at_ms"], ended_ms)
    if attempt is None:
        return
    named = f"attempt {attempt.number}"
    restored_ms = attempt.restored_at_ms or attempt.running_at_ms or attempt.ended_at_ms or done_ms
    more = {"keyscale.attempt": attempt.number, "keyscale.parallelism": attempt.parallelism}
    yield make.span("attempt", named, "operation", attempt.created_at_ms, restored_ms, **more)
    if attempt.first_commit_at_ms is not None:
        yield make.span("first batch", "first batch", "attempt", restored_ms, attempt.first_commit_at_ms, **more)


@dataclass(frozen=True, slots=True)
class _SpanMaker:
    """Makes the spans of an operation's trace."""

    operation_id: str
    known: dict[str, object]

    def span(
        self, key: str, name: str, parent: str | None, begun_ms: int, ended_ms: int, **more: object
    ) -> dict[str, Any]:
        """Returns a span.

        By the clocks of two processes it may end before it has begun.
        """
        return {
            "traceId": trace_id(self.operation_id),
            "spanId": span_id(self.operation_id, key),
            **({} if parent is None else {"parentSpanId": span_id(self.operation_id, parent)}),
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": nanoseconds(begun_ms),
            "endTimeUnixNano": nanoseconds(max(begun_ms, ended_ms)),
            "attributes": attributes({**self.known, **more}),
        }
