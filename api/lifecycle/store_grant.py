"""The rights of a job's driver to the objects of the store.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.identifiers import JobId
from keyscale.state.doors.objects import Grant
from keyscale.state.doors.paths import CONTROL_PLANES, Layout, job_of_manifest, split_location
from keyscale.vocabulary import ClaimMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyscale.db.models import Job


def grant_of(job: Job, restored_from: Iterable[tuple[str, ClaimMode]]) -> Grant:
    """Returns the rights of a job's driver in the store.

    Pure.

    Args:
        job: The job.
        restored_from: The locations that its attempts restored from, and whether they claimed them.
    """
    own, readable = [Layout(JobId(job.id)).job], [CONTROL_PLANES]
    begun = [(job.rewound_to, ClaimMode.NO_CLAIM)] if job.rewound_to else []
    for location, claim_mode in sorted({*restored_from, *begun}):
        path = split_location(location)[1]
        if (owner := job_of_manifest(path)) == job.id:
            continue
        readable.append(Layout(owner).job)
        if claim_mode is ClaimMode.CLAIM:
            own.append(f"{path.rpartition('/')[0]}/")
    return Grant(job.store_url, tuple(dict.fromkeys(own)), tuple(dict.fromkeys(readable)))
