"""The state of a job's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.key_state.schemas import (
    ChangedKeyAnswer,
    ChangedKeysAnswer,
    KeyChangeRequest,
    KeyChangesRequest,
    KeyHistoryAnswer,
    KeyStateAnswer,
)

from ..call import PLAN_TIMEOUT_S, Call
from ..change_limits import check_count, check_size
from ..method import Method, Noun, S, action, identified

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.api.key_state.schemas import KeyChangeItem

STATE = "/v1/jobs/{job_id}/state/{operator}"
HISTORY = "/v1/jobs/{job_id}/state-history/{operator}"
CHANGES = "/v1/jobs/{job_id}/state-changes"


class States(Noun[S]):
    """The state of a job's keys, after one committed batch."""

    @Method
    def get(
        self, job: str, operator: str, state: str, key: str, *, at: str = "latest", after: int | str | None = None
    ) -> Call[KeyStateAnswer]:
        """Shows a key's state."""
        places = {"job_id": job, "operator": operator, "state": state}
        query = {"key": key, "at": at, "after": after}
        return Call("GET", f"{STATE}/{{state}}", KeyStateAnswer, places, query, timeout_s=PLAN_TIMEOUT_S)

    @Method
    def get_all(
        self, job: str, operator: str, key: str, *, at: str = "latest", after: int | str | None = None
    ) -> Call[KeyStateAnswer]:
        """Shows all states and timers of a key of an operator."""
        query = {"key": key, "at": at, "after": after}
        places = {"job_id": job, "operator": operator}
        return Call("GET", STATE, KeyStateAnswer, places, query, timeout_s=PLAN_TIMEOUT_S)

    @Method
    def history(self, job: str, operator: str, key: str, *, state: str | None = None) -> Call[KeyHistoryAnswer]:
        """Shows the changes of a key in a job's stored batches."""
        places, query = {"job_id": job, "operator": operator}, {"key": key, "state": state}
        return Call("GET", HISTORY, KeyHistoryAnswer, places, query, timeout_s=PLAN_TIMEOUT_S)

    change = action(CHANGES, KeyChangeRequest, ChangedKeyAnswer, timeout_s=PLAN_TIMEOUT_S)
    """Sets or deletes a key's state of a stopped job, in a new savepoint."""

    @Method
    def change_all(
        self,
        job: str,
        changes: Sequence[KeyChangeItem | Mapping[str, Any]],
        *,
        id: str | None = None,  # noqa: A002 - the field's name
        checkpoint_id: int | None = None,
    ) -> Call[ChangedKeysAnswer]:
        """Sets or deletes the state of several keys, in one new savepoint.

        Raises:
            ChangesTooLargeError: The changes are too many or too large for one request; none is sent.
        """
        check_count(changes)
        fields = {"changes": changes, "id": id, "checkpoint_id": checkpoint_id}
        request = identified(KeyChangesRequest.model_validate(fields))
        check_size(request.model_dump(mode="json", exclude_unset=True))
        return Call(
            "POST",
            CHANGES,
            ChangedKeysAnswer,
            {"job_id": job},
            body=request,
            is_repeatable=True,
            timeout_s=PLAN_TIMEOUT_S,
        )
