"""An answer says whether its operation goes on, and which revision the job gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response

from keyscale.api.operations import routes
from keyscale.api.operations.schemas.operation import RescaleRequest, StartRequest
from keyscale.vocabulary import OperationKind, OperationStatus


@pytest.mark.parametrize("status", [*OperationStatus, None])
@pytest.mark.parametrize("to_revision", [None, 3])
def test_an_operation_that_goes_on_is_accepted_and_one_that_is_done_or_planned_is_answered(
    status: OperationStatus | None, to_revision: int | None
) -> None:
    response, answer = Response(), SimpleNamespace(status=status, to_revision=to_revision)
    assert routes._told(response, answer) is answer  # type: ignore[arg-type, comparison-overlap]
    goes_on = status in {OperationStatus.IN_PROGRESS, OperationStatus.PENDING_APPROVAL}
    assert response.status_code == (202 if goes_on else 200)
    assert response.headers.get("etag") == (None if to_revision is None else '"3"')


def test_each_short_form_asks_for_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    answer = SimpleNamespace(status=None, to_revision=None)

    def request(*given: Any) -> Any:
        asked.append(given)
        return answer

    monkeypatch.setattr(routes.operation_requests, "request", request)
    given: Any = {"context": "context", "user": "user", "job_id": "flights", "response": Response()}
    plain = {route.path: route.endpoint for route in routes.router.routes if "/operations" not in route.path}  # type: ignore[attr-defined]
    kinds = {f"/jobs/{{job_id}}/{kind.short_form}": kind for kind in routes.PLAIN}
    for path, kind in kinds.items():
        endpoint: Any = plain[path]
        endpoint = endpoint.__wrapped__
        endpoint(**given)
        *of, seen, wanted = asked.pop()
        assert (of, seen, wanted.model_dump(exclude_unset=True)) == (["context", "user", "flights"], kind, {})
    assert len(kinds) > 5
    routes.start_job(**given)
    assert asked.pop()[3:] == (OperationKind.START, StartRequest())
    rescale = RescaleRequest(parallelism=4)
    routes.rescale_job(**given, request=rescale)
    assert asked.pop()[3:] == (OperationKind.RESCALE, rescale)
