"""Versions of what may change about jobs: values that differ after changes.

They say nothing else. A version is made of PostgreSQL's number of the transaction that wrote a row last, so that
writers need not record anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.orm import Session

_JOBS = """
SELECT j.id, j.name, j.labels::text AS labels, j.xmin::text AS job, a.metrics
FROM jobs j LEFT JOIN (
    SELECT a.job_id, string_agg(a.number || ':' || a.xmin::text || ':' || coalesce(h.xmin::text, ''), ','
        ORDER BY a.number) AS metrics
    FROM attempts a LEFT JOIN heartbeats h ON h.job_id = a.job_id AND h.attempt = a.number
    WHERE a.stage <> 'ENDED' OR NOT a.reaped GROUP BY a.job_id
) a ON a.job_id = j.id
"""
_NEWEST = 20
_WATCHED = f"""
SELECT j.id,
    j.xmin::text AS job,
    (SELECT string_agg(a.number || ':' || a.xmin::text || ':' || coalesce(h.xmin::text, ''), ',' ORDER BY a.number)
        FROM attempts a LEFT JOIN heartbeats h ON h.job_id = a.job_id AND h.attempt = a.number
        WHERE a.job_id = j.id AND (a.stage <> 'ENDED' OR NOT a.reaped)) AS metrics,
    (SELECT string_agg(checkpoint_id || ':' || version, ',') FROM (SELECT checkpoint_id, xmin::text AS version
        FROM checkpoints WHERE job_id = j.id ORDER BY checkpoint_id DESC LIMIT {_NEWEST}) c) AS checkpoints,
    (SELECT string_agg(id || ':' || version, ',') FROM (SELECT id, xmin::text AS version
        FROM operations WHERE job_id = j.id ORDER BY requested_at_ms DESC, id DESC LIMIT {_NEWEST}) c) AS operations,
    (SELECT max(id)::text FROM events WHERE job_id = j.id) AS events
FROM jobs j WHERE j.id = ANY(:job_ids)
"""  # noqa: S608 - a constant


@dataclass(frozen=True, slots=True)
class JobVersions:
    """The versions of a job, by topic, with its visibility."""

    id: str
    name: str
    labels_json: str
    topics: Mapping[str, str | None]

    @property
    def labels(self) -> dict[str, str]:
        """The job's labels, parsed on demand.

        Most jobs have not changed since the last poll.
        """
        labels: dict[str, str] = json.loads(self.labels_json)
        return labels


def of_all_jobs(session: Session) -> dict[str, JobVersions]:
    """Returns the versions `job` and `metrics` of every job, by its id."""
    return {
        row.id: JobVersions(row.id, row.name, row.labels, {"job": row.job, "metrics": row.metrics})
        for row in session.execute(text(_JOBS))
    }


def of_jobs(session: Session, job_ids: Collection[str]) -> dict[str, Mapping[str, str | None]]:
    """Returns all versions of some jobs, by job and topic.

    A deleted job is missing.
    """
    found = session.execute(text(_WATCHED), {"job_ids": sorted(job_ids)}).mappings()
    return {row["id"]: {name: value for name, value in row.items() if name != "id"} for row in found}
