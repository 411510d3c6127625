"""A job starts from a snapshot that has its key groups, its hash and an owner from whom it may be claimed."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import JobNotFoundError, OutputWithdrawnError, RequestInvalidError, RestoreSourceError
from keyscale.api.jobs import restore_sources as service
from keyscale.api.jobs.restore_sources import Restorer, find_source, why_not
from keyscale.api.jobs.schemas.restore import RestoreRequest, RestoreSource
from keyscale.api.lifecycle.restoring import Restore
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import Checkpoint, Job
from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.documents.manifest import SnapshotKind
from keyscale.state.layout import Layout, location_of
from keyscale.vocabulary import KEY_GROUPS_MAX, CheckpointStatus, ClaimMode, RestoreMode, Role

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
    [(0, False), (1, True), (KEY_GROUPS_MAX, True), (KEY_GROUPS_MAX + 1, False)],
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


USER = Principal("id", "ann", Role.OPERATOR, JobScope(labels={"team": "a"}))
STORE = "file:///store"
OWN, OTHER = (Layout(JobId(name)) for name in ("mine", "other"))


class Found:
    """The jobs and checkpoints of a database, and the snapshots of a store."""

    def __init__(self) -> None:
        self.jobs = {
            "mine": Job(id="mine", name="mine-name", store_url=STORE, labels={"team": "a"}, max_parallelism=8),
            "other": Job(id="other", name="other-name", store_url=STORE, labels={"team": "a"}),
            "hidden": Job(id="hidden", name="hidden-name", store_url=STORE, labels={"team": "b"}),
            "away": Job(id="away", name="away-name", store_url="file:///elsewhere", labels={"team": "a"}),
        }
        self.checkpoints: dict[tuple[str, int], Checkpoint] = {}
        self.manifest = manifest()
        self.claimed_by: str | None = None
        self.keeps_output = True
        self.read: list[tuple[Any, ...]] = []
        self.context: Any = SimpleNamespace(
            sessions=SimpleNamespace(begin=lambda: nullcontext(None)),
            reads=lambda: nullcontext(None),
            store=SimpleNamespace(read_snapshot=self._read_snapshot),
            settings=SimpleNamespace(plan_timeout_ms=7),
        )

    def find(self, _: Any, name: str, *, scope: JobScope = EVERYTHING) -> Job | None:
        for job in self.jobs.values():
            if name in {job.id, job.name} and scope.covers(job_id=job.id, name=job.name, labels=job.labels):
                return job
        return None

    def newest(self, _: Any, job_id: str, *, before_ms: int | None = None) -> Checkpoint | None:
        own = [row for (owner, _), row in self.checkpoints.items() if owner == job_id]
        known = [row for row in own if before_ms is None or row.trigger_timestamp < before_ms]
        return max(known, key=lambda row: row.checkpoint_id, default=None)

    def add(self, job_id: str, number: int, at_ms: int, status: CheckpointStatus = CheckpointStatus.COMPLETED) -> str:
        path = Layout(JobId(job_id)).manifest(CheckpointId(number), None)
        self.checkpoints[job_id, number] = Checkpoint(
            checkpoint_id=number, status=status, external_path=location_of(STORE, path), trigger_timestamp=at_ms
        )
        return path

    def _read_snapshot(self, store_url: str, path: str, *, limit_ms: int) -> Any:
        self.read.append((store_url, path, limit_ms))
        return SimpleNamespace(manifest=self.manifest, claimed_by=self.claimed_by, keeps_output=self.keeps_output)

    def source(self, restorer: Restorer | None = None, **request: Any) -> Any:
        claim_mode = request.pop("claim_mode", ClaimMode.NO_CLAIM)
        allows = request.pop("allow_non_restored_state", False)
        wanted = RestoreRequest(
            restore_from=RestoreSource(**request) if request else None,
            claim_mode=claim_mode,
            allow_non_restored_state=allows,
        )
        return find_source(self.context, USER, wanted, restorer or Restorer.of(MINE))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    found = Found()
    monkeypatch.setattr(service.jobs, "find", found.find)
    monkeypatch.setattr(service.jobs, "lock", lambda _, job_id: found.jobs.get(job_id))
    monkeypatch.setattr(service.checkpoints, "find", lambda _, *key: found.checkpoints.get(key))
    monkeypatch.setattr(service.checkpoints, "latest_completed", found.newest)
    monkeypatch.setattr(
        service.JobTransaction, "latest_completed", lambda transaction: found.newest(None, transaction.job.id)
    )
    return found


def test_a_start_without_a_source_goes_on_and_claims_nothing(found: Found) -> None:
    assert found.source() is None
    with pytest.raises(RequestInvalidError):
        found.source(claim_mode=ClaimMode.CLAIM)


def test_the_named_snapshot_of_the_named_job_is_taken(found: Found) -> None:
    paths = {number: found.add("other", number, at_ms=10 * number) for number in (3, 4, 5)}
    own = found.add("mine", 9, at_ms=90)
    savepoint = OTHER.manifest(CheckpointId(0), "s")
    for request, path in (
        ({"job": "other", "checkpoint_id": 3}, paths[3]),
        ({"job": "other-name", "latest": True}, paths[5]),
        ({"job": "other", "before_ms": 50}, paths[4]),
        ({"job": "other", "savepoint_id": "s"}, savepoint),
        ({"checkpoint_id": 9}, own),
        ({"location": location_of(STORE, savepoint)}, savepoint),
    ):
        found.read.clear()
        restore = found.source(**request).restore
        assert (restore.location, restore.mode) == (location_of(STORE, path), RestoreMode.REWIND)
        assert found.read == [(STORE, path, 7)]


@pytest.mark.parametrize(
    ("request_", "mode"),
    [
        ({"latest": True}, RestoreMode.CONTINUE),
        ({"job": "mine-name", "latest": True}, RestoreMode.CONTINUE),
        ({"checkpoint_id": 9}, RestoreMode.REWIND),
        ({"job": "other", "latest": True}, RestoreMode.REWIND),
    ],
)
def test_only_from_its_own_latest_snapshot_a_job_goes_on_with_its_log(
    found: Found, request_: dict[str, Any], mode: RestoreMode
) -> None:
    found.add("mine", 9, at_ms=90)
    found.add("other", 8, at_ms=80)
    assert found.source(**request_).restore.mode is mode
    assert found.source(NEW, job="mine", latest=True).restore.mode is RestoreMode.REWIND, "a new job has no log"


def test_the_restore_of_the_request_is_kept(found: Found) -> None:
    found.manifest = manifest(kind=SnapshotKind.SAVEPOINT, max_parallelism=16)
    taken = found.source(NEW, job="other", savepoint_id="s", claim_mode=ClaimMode.CLAIM, allow_non_restored_state=True)
    assert (taken.restore.claim_mode, taken.restore.allow_non_restored_state) == (ClaimMode.CLAIM, True)
    assert (taken.max_parallelism, bool(taken.restore.id)) == (16, True)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"job": "hidden", "latest": True}, JobNotFoundError),
        ({"job": "gone", "latest": True}, JobNotFoundError),
        ({"job": "away", "latest": True}, RestoreSourceError),
        ({"job": "other", "latest": True}, RestoreSourceError),
        ({"job": "other", "checkpoint_id": 3}, RestoreSourceError),
        ({"checkpoint_id": 5}, RestoreSourceError),
        ({"before_ms": 90}, RestoreSourceError),
        ({"location": "nowhere"}, RestoreSourceError),
        ({"location": location_of(STORE, Layout(JobId("hidden")).manifest(CheckpointId(0), "s"))}, RestoreSourceError),
        ({"location": location_of("file:///elsewhere", OTHER.manifest(CheckpointId(0), "s"))}, RestoreSourceError),
    ],
)
def test_what_is_not_there_and_what_the_user_may_not_see_is_refused(
    found: Found, request_: dict[str, Any], error: type[Exception]
) -> None:
    found.add("mine", 9, at_ms=90)
    found.add("mine", 5, at_ms=90, status=CheckpointStatus.DISCARDED)
    with pytest.raises(error):
        found.source(**request_)
    assert found.read == []


def test_a_new_job_names_the_job_of_its_source(found: Found) -> None:
    with pytest.raises(RequestInvalidError):
        found.source(NEW, latest=True)


@pytest.mark.parametrize(
    ("owner", "is_taken", "named"),
    [
        (None, True, ""),
        ("mine", True, ""),
        ("other", False, "other-name"),
        ("hidden", False, "a job that you may not see"),
    ],
)
def test_a_snapshot_that_another_job_has_claimed_is_refused(
    found: Found, owner: str | None, is_taken: bool, named: str
) -> None:
    found.add("mine", 9, at_ms=90)
    found.claimed_by = owner
    if is_taken:
        assert found.source(latest=True) is not None
    else:
        with pytest.raises(RestoreSourceError, match=named):
            found.source(latest=True)


def test_a_snapshot_that_does_not_fit_is_refused(found: Found) -> None:
    found.add("mine", 9, at_ms=90)
    found.manifest = manifest(hash_id="java")
    with pytest.raises(RestoreSourceError, match="its hash is java"):
        found.source(latest=True)


@pytest.mark.parametrize("is_discarded", [False, True])
def test_a_snapshot_that_was_deleted_since_it_was_found_is_refused(
    monkeypatch: pytest.MonkeyPatch, is_discarded: bool
) -> None:
    reserved: list[str] = []

    def discarded(_: Any, location: str) -> bool:
        assert reserved == [location], "its deletion waits for this transaction"
        return is_discarded

    monkeypatch.setattr(service.operations, "reserve_id", lambda _, name: reserved.append(name))
    monkeypatch.setattr(service.checkpoints, "is_discarded", discarded)
    source, session = service.FoundSource(Restore("w", RestoreMode.REWIND, "file:///s"), 8, "spark"), cast("Any", None)
    if is_discarded:
        with pytest.raises(RestoreSourceError):
            service.require_kept(session, source)
    else:
        service.require_kept(session, source)


def test_a_snapshot_that_the_job_went_back_behind_is_refused_to_that_job_alone(found: Found) -> None:
    found.add("mine", 9, at_ms=90)
    found.manifest, found.keeps_output = manifest(job_id="mine"), False
    with pytest.raises(OutputWithdrawnError, match="went back behind it"):
        found.source(checkpoint_id=9)
    assert found.source(latest=True).restore.mode is RestoreMode.CONTINUE, "that is the job's present history"
    found.manifest = manifest(job_id="other")
    found.add("other", 9, at_ms=90)
    assert found.source(job="other", checkpoint_id=9).restore.mode is RestoreMode.REWIND


@pytest.mark.parametrize("restorer", [Restorer.of(MINE), NEW], ids=["an existing job", "a new job"])
def test_a_snapshot_belongs_to_the_job_that_has_claimed_it_even_if_another_job_took_it(
    found: Found, restorer: Restorer
) -> None:
    found.add("other", 8, at_ms=80)
    found.claimed_by = "other"
    with pytest.raises(RestoreSourceError, match="the job other-name has claimed it"):
        found.source(restorer, job="other", latest=True)
    found.claimed_by = "mine"
    if restorer is NEW:
        with pytest.raises(RestoreSourceError, match="the job mine-name has claimed it"):
            found.source(restorer, job="other", latest=True)
    else:
        assert found.source(restorer, job="other", latest=True).restore.mode is RestoreMode.REWIND


@pytest.mark.parametrize(
    ("user", "named"),
    [(USER, "a job that you may not see"), (Principal("id", "root", Role.ADMIN), "job deleted")],
    ids=["a user with a scope", "an administrator"],
)
def test_a_job_that_is_not_in_the_database_has_its_id_as_name_for_users_of_every_job(
    found: Found, user: Principal, named: str
) -> None:
    session = cast("Any", None)
    assert service.named_to(session, user, "deleted") == named
    assert service.named_to(session, user, "other") == "the job other-name"
    assert found.read == []


def test_a_snapshot_of_a_deleted_job_is_for_users_of_every_job(found: Found) -> None:
    location = location_of(STORE, Layout(JobId("deleted")).manifest(CheckpointId(0), "s"))
    with pytest.raises(RestoreSourceError, match="no manifest can be read there"):
        found.source(location=location)
    wanted = RestoreRequest(restore_from=RestoreSource(location=location))
    everybody = Principal("id", "root", Role.ADMIN)
    taken = find_source(found.context, everybody, wanted, Restorer.of(MINE))
    assert taken is not None
    assert taken.restore.location == location


def test_a_new_job_gets_the_hash_of_its_snapshot_and_names_the_store_with_or_without_a_slash(found: Found) -> None:
    path = OTHER.manifest(CheckpointId(0), "s")
    found.manifest = manifest(hash_id="java", max_parallelism=16)
    taken = found.source(Restorer(None, f"{STORE}/", None, None), location=location_of(STORE, path))
    assert (taken.hash_id, taken.max_parallelism) == ("java", 16)
    assert found.read == [(f"{STORE}/", path, 7)]


def test_a_checkpoint_without_a_location_is_no_source(found: Found) -> None:
    found.add("mine", 9, at_ms=90)
    found.checkpoints["mine", 9].external_path = None
    for request in ({"checkpoint_id": 9}, {"latest": True}, {"before_ms": 91}):
        with pytest.raises(RestoreSourceError, match=r"^checkpoint 9 of job .* has no location$"):
            found.source(**request)
