"""A job's revisions."""

from __future__ import annotations

from keyscale.api.revisions.schemas import RevisionAnswer, RevisionDiffAnswer, RevisionList

from ..call import Call, Pages
from ..method import ListMethod, Method, Noun, S

REVISIONS = "/v1/jobs/{job_id}/revisions"
REVISION = f"{REVISIONS}/{{revision}}"


class Revisions(Noun[S]):
    """A job's revisions, by number."""

    @ListMethod
    def list(self, job: str, *, created_by: str | None = None, limit: int | None = None) -> Pages[RevisionAnswer]:
        """Lists a job's revisions, the newest first."""
        query = {"created_by": created_by, "limit": limit}
        return Pages(Call("GET", REVISIONS, RevisionList, {"job_id": job}, query), "revisions")

    @Method
    def get(self, job: str, number: int) -> Call[RevisionAnswer]:
        """Shows a revision, and how the last change to it ended."""
        return Call("GET", REVISION, RevisionAnswer, {"job_id": job, "revision": number})

    @Method
    def diff(self, job: str, number: int, to: int) -> Call[RevisionDiffAnswer]:
        """Compares two revisions of a job."""
        return Call("GET", f"{REVISION}/diff", RevisionDiffAnswer, {"job_id": job, "revision": number}, {"to": to})
