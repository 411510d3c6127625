"""Changes of a job's revision, and rescales among them."""

from __future__ import annotations

from keyscale.api.schemas.change import ChangeAnswer, ChangeList, RescaleAnswer, RescaleList

from ..call import Call, Pages
from ..method import ListMethod, Method, Noun, S

JOB = "/v1/jobs/{job_id}"


class Changes(Noun[S]):
    """Changes of a job's revision."""

    @ListMethod
    def list(self, job: str, *, limit: int | None = None) -> Pages[ChangeAnswer]:
        """Lists a job's changes, the newest first."""
        return Pages(Call("GET", f"{JOB}/changes", ChangeList, {"job_id": job}, {"limit": limit}), "changes")

    @Method
    def get(self, job: str, change_id: str) -> Call[ChangeAnswer]:
        """Shows a change."""
        return Call("GET", f"{JOB}/changes/{{change_id}}", ChangeAnswer, {"job_id": job, "change_id": change_id})

    @Method
    def cancel(self, job: str, change_id: str) -> Call[ChangeAnswer]:
        """Cancels a change; the job stays unchanged."""
        places = {"job_id": job, "change_id": change_id}
        return Call("POST", f"{JOB}/changes/{{change_id}}/cancel", ChangeAnswer, places)

    @ListMethod
    def list_rescales(self, job: str, *, limit: int | None = None) -> Pages[RescaleAnswer]:
        """Lists a job's rescales, the newest first."""
        return Pages(Call("GET", f"{JOB}/rescales", RescaleList, {"job_id": job}, {"limit": limit}), "rescales")

    @Method
    def get_rescale(self, job: str, rescale_id: str) -> Call[RescaleAnswer]:
        """Shows a rescale."""
        places = {"job_id": job, "rescale_id": rescale_id}
        return Call("GET", f"{JOB}/rescales/{{rescale_id}}", RescaleAnswer, places)
