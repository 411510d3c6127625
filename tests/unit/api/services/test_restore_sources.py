"""A job starts from a snapshot that has its key groups, its hash and an owner from whom it may be claimed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.api.services.restore_sources import Restorer, why_not
from keyscale.db.models import Job
from keyscale.state.documents.manifest import SnapshotKind
from keyscale.state.keys.key_groups import MAX_PARALLELISM_UPPER_BOUND

MINE = Job(id="mine", store_url="file:///store", max_parallelism=8, hash_id="spark")
NEW = Restorer(None, "file:///store", None, "spark")


def manifest(**fields: Any) -> Any:
    given = {"job_id": "other", "kind": SnapshotKind.CHECKPOINT, "max_parallelism": 8, "hash_id": "spark"}
    return cast("Any", SimpleNamespace(**{**given, **fields}))


@pytest.mark.parametrize("restorer", [Restorer.of(MINE), NEW])
def test_a_snapshot_that_fits_is_taken(restorer: Restorer) -> None:
    assert why_not(manifest(), restorer, claims=False) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"max_parallelism": 16}, "its max parallelism is 16, the job's 8"),
        ({"hash_id": "java"}, "its hash is java, the job's spark"),
    ],
)
def test_key_groups_and_hash_are_those_of_the_job(fields: dict[str, Any], problem: str) -> None:
    assert why_not(manifest(**fields), Restorer.of(MINE), claims=False) == problem


@pytest.mark.parametrize(
    ("max_parallelism", "is_taken"),
    [(0, False), (1, True), (MAX_PARALLELISM_UPPER_BOUND, True), (MAX_PARALLELISM_UPPER_BOUND + 1, False)],
)
def test_a_new_job_takes_the_key_groups_of_the_snapshot_within_the_bounds(max_parallelism: int, is_taken: bool) -> None:
    assert (why_not(manifest(max_parallelism=max_parallelism), NEW, claims=False) is None) is is_taken


@pytest.mark.parametrize(
    ("owner", "kind", "is_taken"),
    [
        ("other", SnapshotKind.CHECKPOINT, False),
        ("other", SnapshotKind.SAVEPOINT, True),
        ("mine", SnapshotKind.CHECKPOINT, True),
        ("mine", SnapshotKind.SAVEPOINT, True),
    ],
)
def test_only_the_checkpoint_of_another_job_cannot_be_claimed(owner: str, kind: SnapshotKind, is_taken: bool) -> None:
    given = manifest(job_id=owner, kind=kind)
    assert (why_not(given, Restorer.of(MINE), claims=True) is None) is is_taken
    assert (why_not(given, NEW, claims=True) is None) is (kind is SnapshotKind.SAVEPOINT)
