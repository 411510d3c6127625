"""The facts of a clean-up, gathered from a store, and the objects that a plan deletes from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.state.documents.claim import take_claim
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted
from keyscale.state.documents.manifest import Manifest, SnapshotKind, write_manifest
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention import deletion
from keyscale.state.retention.deletion import Deleted, delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import DeletionPlan, RetentionFacts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from keyscale.state.objects.object_store import ObjectInfo

JOB, OTHER = JobId("job"), JobId("other")
LAYOUT = Layout(JOB)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


def manifest(number: int, savepoint_id: str | None = None, job_id: JobId = JOB) -> Manifest:
    kind = SnapshotKind.CHECKPOINT if savepoint_id is None else SnapshotKind.SAVEPOINT
    return Manifest(
        job_id,
        CheckpointId(number),
        kind,
        Attempt(1),
        BatchId(0),
        0,
        8,
        HashId.SPARK,
        created_at_ms=0,
        operators=(),
        savepoint_id=savepoint_id,
    )


def opened(attempt: int, base: Manifest | None, *, claims: bool) -> AttemptOpened:
    return AttemptOpened(
        Attempt(attempt), 1, 8, HashId.SPARK, base.path if base else None, 0, {}, rewinds=True, claims=claims
    )


def listed(store: LocalObjectStore, *prefixes: str) -> list[ObjectInfo]:
    return [info for prefix in prefixes for info in store.list(prefix)]


def test_the_facts_have_all_objects_of_the_job_and_of_what_it_has_claimed(store: LocalObjectStore) -> None:
    claimed, used = manifest(4, "claimed", OTHER), manifest(5, "used", OTHER)
    checkpoint, own, given = manifest(1), manifest(2, "own"), manifest(3, "given")
    for each in (claimed, used, checkpoint, own, given):
        write_manifest(store, each)
    take_claim(store, claimed, JOB)
    take_claim(store, own, JOB)
    take_claim(store, given, OTHER)
    store.put(f"{LAYOUT.checkpoints}9/manifest.json", b"damaged")
    store.put(f"{LAYOUT.shared}manifest.json", b"no manifest, whatever its name")
    store.put("other/savepoints/claimed/files/a", b"a")
    store.put("job2/chk-1/manifest.json", b"of another job")
    entries = [opened(1, used, claims=False), opened(2, claimed, claims=True), opened(3, own, claims=True)]
    log = CommitLog(store, LAYOUT)
    position = 1
    for entry in entries:
        position = log.append(position, entry)
        position = log.append(position, BatchCommitted(entry.attempt, BatchId(0), {}, {}, 0))
    facts = gather_facts(store, JOB, 77)
    assert facts == RetentionFacts(
        job_id=JOB,
        objects=listed(store, "job/", "other/savepoints/claimed/"),
        manifests={each.path: each for each in (checkpoint, own, given, claimed)},
        unreadable=frozenset({"job/chk-9/manifest.json"}),
        openings={1: entries[0], 3: entries[1], 5: entries[2]},
        now_ms=77,
        lost=frozenset({"job/savepoints/given/"}),
    )
    assert facts.claimed == {claimed.path, own.path}
    assert gather_facts(store, JOB, 77, log) == facts


def test_a_manifest_that_is_never_found_is_unreadable_and_is_looked_for_some_times(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(store, manifest(1))
    real, listings = store.list, list[str]()

    def with_a_ghost(prefix: str, **how: Any) -> Iterable[ObjectInfo]:
        listings.append(prefix)
        found = list(real(prefix, **how))
        return [
            *found,
            *(
                type(info)("job/chk-2/manifest.json", 1, 0)
                for info in found
                if info.path.endswith("chk-1/manifest.json")
            ),
        ]

    monkeypatch.setattr(store, "list", with_a_ghost)
    facts = gather_facts(store, JOB, 77)
    assert (set(facts.manifests), facts.unreadable) == ({"job/chk-1/manifest.json"}, {"job/chk-2/manifest.json"})
    assert listings.count("job/") == deletion.LISTINGS


def plan(store: LocalObjectStore) -> DeletionPlan:
    for number in range(5):
        store.put(f"job/{number}", b"x" * (number + 1))
    infos = listed(store, "job/")
    return DeletionPlan(tuple(infos[:1]), tuple(infos[1:]), ())


def test_a_plan_deletes_its_manifests_and_the_files_that_are_still_as_they_were(store: LocalObjectStore) -> None:
    planned = plan(store)
    store.put("job/2", b"written again")
    store.delete(["job/3"])
    assert delete_planned(store, planned) == Deleted(objects=3, size_bytes=1 + 2 + 5)
    assert [info.path for info in store.list("job/")] == ["job/2"]


@pytest.mark.parametrize(
    ("answers", "left"),
    [([True], "01234"), ([False, True], "1234"), ([False, False, True], "34"), ([False] * 4, "")],
)
def test_a_deletion_ends_at_the_group_before_which_a_newer_attempt_has_begun(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch, answers: list[bool], left: str
) -> None:
    monkeypatch.setattr(deletion, "DELETES_AT_A_TIME", 2)
    planned, upcoming = plan(store), iter(answers)
    done = delete_planned(store, planned, lambda: next(upcoming, False))
    assert [info.path for info in store.list("job/")] == [f"job/{number}" for number in left]
    assert done.objects == 5 - len(left)
