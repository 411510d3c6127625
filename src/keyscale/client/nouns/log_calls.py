"""The logs of drivers."""

from __future__ import annotations

from keyscale.api.logs.schemas import LogAnswer

from ..call import Call
from ..method import Method, Noun, S


class Logs(Noun[S]):
    """The logs of drivers."""

    @Method
    def get(
        self,
        job: str,
        *,
        attempt: int | None = None,
        tail_bytes: int | None = None,
        offset: int | None = None,
        limit_bytes: int | None = None,
        search: str | None = None,
    ) -> Call[LogAnswer]:
        """Shows a driver's log: its end, or lines by offset or text.

        To follow the log, ask again with `offset=answer.next_offset`.
        """
        query = {
            "attempt": attempt,
            "tail_bytes": tail_bytes,
            "offset": offset,
            "limit_bytes": limit_bytes,
            "search": search,
        }
        return Call("GET", "/v1/jobs/{job_id}/logs", LogAnswer, {"job_id": job}, query)
