"""The state of a job's keys."""

from __future__ import annotations

from keyscale.api.key_state.schemas import (
    ChangedKeyAnswer,
    ChangedKeysAnswer,
    KeyChangeRequest,
    KeyChangesRequest,
    KeyHistoryAnswer,
    KeyStateAnswer,
)

from ..call import PLAN_TIMEOUT_S, Call
from ..method import Method, Noun, S, action

STATE = "/v1/jobs/{job_id}/state/{operator}"
HISTORY = "/v1/jobs/{job_id}/state-history/{operator}"
CHANGES = "/v1/jobs/{job_id}/state-changes"


class States(Noun[S]):
    """The state of a job's keys, after one committed batch."""

    @Method
    def get(
        self, job: str, operator: str, state: str, key: str, *, at: str = "latest", after_batch: int | None = None
    ) -> Call[KeyStateAnswer]:
        """Shows a key's state."""
        places = {"job_id": job, "operator": operator, "state": state}
        query = {"key": key, "at": at, "after_batch": after_batch}
        return Call("GET", f"{STATE}/{{state}}", KeyStateAnswer, places, query, timeout_s=PLAN_TIMEOUT_S)

    @Method
    def get_all(
        self, job: str, operator: str, key: str, *, at: str = "latest", after_batch: int | None = None
    ) -> Call[KeyStateAnswer]:
        """Shows all states and timers of a key of an operator."""
        query = {"key": key, "at": at, "after_batch": after_batch}
        places = {"job_id": job, "operator": operator}
        return Call("GET", STATE, KeyStateAnswer, places, query, timeout_s=PLAN_TIMEOUT_S)

    @Method
    def history(self, job: str, operator: str, key: str, *, state: str | None = None) -> Call[KeyHistoryAnswer]:
        """Shows the changes of a key in a job's stored batches."""
        places, query = {"job_id": job, "operator": operator}, {"key": key, "state": state}
        return Call("GET", HISTORY, KeyHistoryAnswer, places, query, timeout_s=PLAN_TIMEOUT_S)

    change = action(CHANGES, KeyChangeRequest, ChangedKeyAnswer, timeout_s=PLAN_TIMEOUT_S)
    """Sets or deletes a key's state of a stopped job, in a new savepoint."""

    change_all = action(CHANGES, KeyChangesRequest, ChangedKeysAnswer, timeout_s=PLAN_TIMEOUT_S)
    """Sets or deletes the state of several keys, in one new savepoint."""
