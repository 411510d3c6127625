"""A driver may read what its job restores from, and change its own objects and what it has claimed."""

from __future__ import annotations

from keyscale.api.lifecycle.store_grant import grant_of
from keyscale.db.models import Job
from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.layout import CONTROL_PLANES, Layout, location_of
from keyscale.vocabulary import ClaimMode

STORE = "s3://bucket/prefix"
OWN, OTHER, THIRD = (Layout(JobId(name)) for name in ("own", "other", "third"))


def location(layout: Layout, savepoint: str) -> str:
    return location_of(STORE, layout.manifest(CheckpointId(0), savepoint))


def test_a_job_has_the_objects_of_its_own_and_reads_the_addresses_of_control_planes() -> None:
    granted = grant_of(Job(id="own", store_url=STORE), [(location(OWN, "s"), ClaimMode.CLAIM)])
    assert granted.store_url == STORE
    assert (granted.own, granted.readable) == ((OWN.job,), (CONTROL_PLANES,))


def test_what_another_job_has_taken_is_read_and_may_be_deleted_only_when_it_was_claimed() -> None:
    job = Job(id="own", store_url=STORE, rewound_to=location(THIRD, "r"))
    granted = grant_of(
        job, [(location(OTHER, "s"), ClaimMode.CLAIM), (location(OTHER, "kept"), ClaimMode.NO_CLAIM)] * 2
    )
    claimed = OTHER.manifest(CheckpointId(0), "s").rpartition("/")[0]
    assert granted.own == (OWN.job, f"{claimed}/")
    assert granted.readable == (CONTROL_PLANES, OTHER.job, THIRD.job)
