"""A job's savepoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.snapshots.schemas.savepoint import SavepointAnswer, SavepointList
from keyscale.api.snapshots.schemas.snapshot_maintenance import DeletionAnswer

from ..call import PLAN_TIMEOUT_S, Call, Pages
from ..method import ListMethod, Method, Noun, S

if TYPE_CHECKING:
    from keyscale.vocabulary import SnapshotOwner

SAVEPOINTS = "/v1/jobs/{job_id}/savepoints"
SAVEPOINT = f"{SAVEPOINTS}/{{savepoint_id}}"


class Savepoints(Noun[S]):
    """A job's savepoints, by id."""

    @ListMethod
    def list(self, job: str, *, owner: SnapshotOwner | None = None, limit: int | None = None) -> Pages[SavepointAnswer]:
        """Lists a job's savepoints, the newest first."""
        query = {"owner": owner, "limit": limit}
        return Pages(Call("GET", SAVEPOINTS, SavepointList, {"job_id": job}, query), "savepoints")

    @Method
    def get(self, job: str, savepoint_id: str) -> Call[SavepointAnswer]:
        """Shows a savepoint."""
        return Call("GET", SAVEPOINT, SavepointAnswer, {"job_id": job, "savepoint_id": savepoint_id})

    @Method
    def keep(self, job: str, savepoint_id: str) -> Call[SavepointAnswer]:
        """Keeps a savepoint that was taken for a change."""
        places = {"job_id": job, "savepoint_id": savepoint_id}
        return Call("POST", f"{SAVEPOINT}/keep", SavepointAnswer, places, is_repeatable=True)

    @Method
    def delete(self, job: str, savepoint_id: str, *, dry_run: bool = False) -> Call[DeletionAnswer]:
        """Deletes an unneeded savepoint.

        A dry run shows what the deletion would free.
        """
        places, query = {"job_id": job, "savepoint_id": savepoint_id}, {"dry_run": dry_run}
        return Call("DELETE", SAVEPOINT, DeletionAnswer, places, query, timeout_s=PLAN_TIMEOUT_S)
