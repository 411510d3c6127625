"""The plan from facts alone: names, ages, manifests and openings, without a store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.claim import claim_path
from keyscale.state.documents.log_entries import AttemptOpened
from keyscale.state.documents.manifest import FileHandle, Manifest, SnapshotKind
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.objects.object_store import ObjectInfo
from keyscale.state.retention.deletion_plan import (
    DeletionPlan,
    RetentionError,
    RetentionFacts,
    RetentionPolicy,
    claimed_by,
    directory_of,
    plan_deletion,
)

JOB, OTHER = JobId("job"), JobId("other")
LAYOUT = Layout(JOB)
NOW_MS, AGE_FLOOR_MS = 1_000_000, 1000
POLICY = RetentionPolicy(retained_count=1, age_floor_ms=AGE_FLOOR_MS)


def manifest(
    number: int,
    *files: str,
    savepoint_id: str | None = None,
    job_id: JobId = JOB,
    attempt: int = 1,
    log_position: int = 0,
    batch_id: int = 0,
) -> Manifest:
    return Manifest(
        job_id=job_id,
        checkpoint_id=CheckpointId(number),
        kind=SnapshotKind.CHECKPOINT if savepoint_id is None else SnapshotKind.SAVEPOINT,
        attempt=Attempt(attempt),
        batch_id=BatchId(batch_id),
        log_position=log_position,
        max_parallelism=128,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(),
        positions=FileHandle(files[0], files[0], 1, "") if files else None,
        savepoint_id=savepoint_id,
    )


def opened(attempt: int, base: Manifest | None = None, *, claims: bool = False) -> AttemptOpened:
    return AttemptOpened(Attempt(attempt), 1, 128, HashId.SPARK, base.path if base else None, 0, {}, claims=claims)


def changelog(attempt: int, batch_id: int) -> str:
    uid, index = OperatorUid("count"), SubtaskIndex(0)
    return LAYOUT.changelog(uid, batch_id=BatchId(batch_id), subtask=index, attempt=Attempt(attempt), unique="x")


def plan(
    *manifests: Manifest,
    objects: dict[str, int] | None = None,
    openings: dict[int, AttemptOpened] | None = None,
    policy: RetentionPolicy = POLICY,
    unreadable: frozenset[str] = frozenset(),
    lost: frozenset[str] = frozenset(),
) -> DeletionPlan:
    """Plans for these manifests, their files, and further objects with the age of each."""
    ages = {
        path: 10 * AGE_FLOOR_MS for each in manifests for path in (each.path, *(file.path for file in each.files()))
    }
    listed = [ObjectInfo(path, 1, NOW_MS - age_ms) for path, age_ms in (ages | (objects or {})).items()]
    by_path = {each.path: each for each in manifests}
    return plan_deletion(RetentionFacts(JOB, listed, by_path, unreadable, openings or {}, NOW_MS, lost), policy)


def files(planned: DeletionPlan) -> set[str]:
    return {info.path for info in planned.files}


def manifests(planned: DeletionPlan) -> set[str]:
    return {info.path for info in planned.manifests}


def test_only_objects_of_the_job_are_planned_and_none_of_a_savepoint_that_another_job_has_claimed() -> None:
    lost = directory_of(manifest(1, savepoint_id="given").path)
    orphans = {f"{LAYOUT.job}shared/x": 5000, "other/shared/x": 5000, f"{lost}x": 5000, "jobless": 5000}
    assert files(plan(objects=orphans)) == {f"{LAYOUT.job}shared/x", f"{lost}x"}
    assert files(plan(objects=orphans, lost=frozenset({lost}))) == {f"{LAYOUT.job}shared/x"}


def test_a_manifest_that_was_published_since_the_manifests_were_read_is_left_alone_whatever_its_age() -> None:
    later = manifest(9).path
    assert plan(manifest(1), objects={later: 5000}) == DeletionPlan((), (), ())


@pytest.mark.parametrize(("age_ms", "is_deleted"), [(AGE_FLOOR_MS - 1, False), (AGE_FLOOR_MS, True)])
def test_a_file_that_nothing_names_is_deleted_from_the_age_floor_on(age_ms: int, is_deleted: bool) -> None:
    path = f"{LAYOUT.job}shared/x"
    assert files(plan(objects={path: age_ms})) == ({path} if is_deleted else set())


def test_a_file_of_a_subsumed_checkpoint_is_deleted_however_young_unless_another_one_names_it() -> None:
    old, new = manifest(1, f"{LAYOUT.job}a"), manifest(2, f"{LAYOUT.job}b")
    planned = plan(old, new, objects={f"{LAYOUT.job}a": 0})
    assert (manifests(planned), files(planned), planned.subsumed) == ({old.path}, {f"{LAYOUT.job}a"}, (1,))
    shares = manifest(2, f"{LAYOUT.job}a")
    assert files(plan(old, shares)) == set()


def test_none_are_retained_by_count_where_the_policy_says_none() -> None:
    only = manifest(1, f"{LAYOUT.job}a")
    planned = plan(only, openings={1: opened(1)}, policy=RetentionPolicy(0, AGE_FLOOR_MS))
    assert (manifests(planned), files(planned)) == ({only.path}, {f"{LAYOUT.job}a"})
    assert plan(only, policy=RetentionPolicy(0, AGE_FLOOR_MS, frozenset({only.path}))) == DeletionPlan((), (), ())


def test_checkpoints_are_subsumed_in_the_order_of_their_numbers_and_those_of_other_jobs_never() -> None:
    own = [manifest(number) for number in (10, 2, 9)]
    others = manifest(50, job_id=OTHER)
    planned = plan(*own, others)
    assert (planned.subsumed, manifests(planned)) == ((2, 9), {own[1].path, own[2].path})


def test_the_log_before_the_base_is_deleted_but_for_what_fences_older_drivers() -> None:
    entries = {LAYOUT.log_entry(position): 0 for position in range(1, 13)}
    base = manifest(1, log_position=10, attempt=2)
    openings = {1: opened(1), 4: opened(2), 11: opened(3, base)}
    deleted = {LAYOUT.log_entry(position) for position in (2, 3, 5, 6, 7, 8, 9, 10)}
    assert files(plan(base, objects=entries, openings=openings)) == deleted
    # A savepoint that the newest attempt was restored from is its base, too, and its log the one to be read.
    savepoint = manifest(1, log_position=6, attempt=2, savepoint_id="mine")
    openings[11] = opened(3, savepoint)
    assert files(plan(base, savepoint, objects=entries, openings=openings)) == {
        LAYOUT.log_entry(position) for position in (2, 3, 5, 6)
    }
    # Once the attempt has a checkpoint of its own, its base no longer counts.
    own = manifest(2, log_position=11, attempt=3)
    assert files(plan(savepoint, own, objects=entries, openings=openings)) == deleted


def test_the_last_entry_of_the_log_stays_although_the_base_holds_it() -> None:
    entries = {LAYOUT.log_entry(position): 0 for position in (1, 2, 3)}
    assert files(plan(manifest(1, log_position=3), objects=entries, openings={1: opened(1)})) == {LAYOUT.log_entry(2)}


def test_changelogs_up_to_the_base_are_deleted_by_attempt_and_batch() -> None:
    base = manifest(1, log_position=10, attempt=2, batch_id=7)
    ages = dict.fromkeys((changelog(*origin) for origin in [(1, 9), (2, 6), (2, 7), (2, 8), (3, 1)]), 5000)
    assert files(plan(base, objects=ages, openings={1: opened(1), 5: opened(2)})) == {
        changelog(1, 9),
        changelog(2, 6),
        changelog(2, 7),
    }
    foreign = manifest(1, log_position=10, attempt=2, batch_id=7, job_id=OTHER)
    assert files(plan(foreign, objects=ages, openings={1: opened(1, foreign)})) == set()


def test_a_claimed_snapshot_stays_until_the_attempt_has_a_checkpoint_and_its_claim_while_a_file_is_needed() -> None:
    savepoint = manifest(5, "other/savepoints/given/x", savepoint_id="given", job_id=OTHER)
    claim = claim_path(savepoint.path)
    openings = {1: opened(1, savepoint, claims=True)}
    assert claimed_by(openings) == {savepoint.path}
    assert claimed_by({1: opened(1, savepoint), 2: opened(2, claims=True)}) == frozenset()
    assert plan(savepoint, objects={claim: 5000}, openings=openings) == DeletionPlan((), (), ())
    uses = manifest(1, "other/savepoints/given/x")
    planned = plan(savepoint, uses, objects={claim: 5000}, openings=openings)
    assert (manifests(planned), files(planned), planned.subsumed) == ({savepoint.path}, set(), ())
    planned = plan(savepoint, manifest(1), objects={claim: 5000}, openings=openings)
    assert files(planned) == {claim, "other/savepoints/given/x"}


def test_an_unreadable_manifest_blocks_unless_it_is_the_one_to_delete() -> None:
    broken = manifest(1, savepoint_id="broken").path
    with pytest.raises(RetentionError, match="savepoints/broken"):
        plan(unreadable=frozenset({broken, f"{broken}2"}), objects={broken: 0})
    policy = RetentionPolicy(1, AGE_FLOOR_MS, discarded=frozenset({broken}))
    assert manifests(plan(unreadable=frozenset({broken}), objects={broken: 0}, policy=policy)) == {broken}


def test_a_savepoint_that_its_owner_discards_stays_as_long_as_the_running_attempt_is_built_on_it() -> None:
    savepoint = manifest(1, savepoint_id="mine")
    policy = RetentionPolicy(1, AGE_FLOOR_MS, discarded=frozenset({savepoint.path}))
    assert manifests(plan(savepoint, openings={1: opened(1, savepoint)}, policy=policy)) == set()
    assert manifests(plan(savepoint, openings={1: opened(1)}, policy=policy)) == {savepoint.path}
    assert manifests(plan(savepoint, policy=POLICY)) == set()


@pytest.mark.parametrize(
    ("modified_ms", "now_ms"), [([900_000, 800_000], 900_000), ([2_000_000, 1], NOW_MS), ([], NOW_MS)]
)
def test_a_clock_that_is_ahead_of_the_newest_object_counts_as_its_time(modified_ms: list[int], now_ms: int) -> None:
    objects = [ObjectInfo(f"{LAYOUT.job}{number}", 1, at_ms) for number, at_ms in enumerate(modified_ms)]
    facts = RetentionFacts(JOB, objects, {}, frozenset(), {}, NOW_MS)
    assert facts.by_store_clock() == replace(facts, now_ms=now_ms)


def test_a_protected_checkpoint_stays_with_its_files_and_the_log_after_it() -> None:
    old, new = manifest(1, f"{LAYOUT.job}a", log_position=4), manifest(2, f"{LAYOUT.job}b", log_position=8)
    entries = {LAYOUT.log_entry(position): 5000 for position in (3, 5, 8, 9)}
    protecting, begun = replace(POLICY, protected=frozenset({old.path})), {1: opened(1)}
    assert plan(old, new, objects=entries, openings=begun, policy=protecting) == DeletionPlan(
        (), (ObjectInfo(LAYOUT.log_entry(3), 1, NOW_MS - 5000),), ()
    )
    assert files(plan(old, new, objects=entries, openings=begun)) == {
        f"{LAYOUT.job}a",
        *(LAYOUT.log_entry(position) for position in (3, 5, 8)),
    }
