"""Checkpoints and savepoints are deleted, verified and compared, with real files in a real store."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import text

import keyscale.api.maintenance.verifier
import keyscale.api.snapshots.verifications
from keyscale.api.access.tokens import token_sha256
from keyscale.api.cli.root import main
from keyscale.api.errors import RestoreSourceError
from keyscale.api.jobs.restore_sources import FoundSource, require_kept
from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.lifecycle.restoring import Restore
from keyscale.api.maintenance.object_removal import ObjectRemoval
from keyscale.api.maintenance.snapshot_removal import SnapshotRemoval
from keyscale.api.snapshots.comparisons import operators_compared
from keyscale.api.snapshots.verifications import LOST_MS
from keyscale.clock import now_ms
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Attempt, Job
from keyscale.identifiers import JobId, OperatorUid
from keyscale.state.documents import source_positions as positions
from keyscale.state.documents.checked_document import STRUCTURES_MAX, encode_document
from keyscale.state.documents.claim import FORMAT_VERSION, KIND, Claim, claim_path
from keyscale.state.documents.manifest import OPERATORS_MAX, FileHandle, encode_manifest, read_manifest, write_manifest
from keyscale.state.documents.source_positions import BatchEnd, SourcePositions
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.vocabulary import AttemptStage, JobStatus, Role
from tests.integration.api.conftest import TOKEN, add_token
from tests.support.control_plane.snapshots import Snapshots
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership

pytestmark = pytest.mark.either_database


@dataclass
class Clock:
    """The time that a verification sees."""

    ms: int

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def snapshots(context: Context, job: dict[str, Any]) -> Snapshots:
    """Four of a job: 1 and 2 share a file, and so do 2 and 4; 3 is the savepoint `kept`."""
    made = Snapshots(context.sessions, job["id"])
    shared = made.layout.shared
    made.take(1, {f"{shared}a": b"a" * 10, f"{shared}b": b"b" * 100})
    made.take(2, {f"{shared}b": b"b" * 100, f"{shared}c": b"c" * 1000})
    made.take(3, {f"{made.layout.savepoint('kept')}files/b": b"b" * 100}, "kept")
    made.take(4, {f"{shared}c": b"c" * 1000})
    return made


def waiting_for_a_lock(context: Context) -> bool:
    with context.sessions() as session:
        waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(session.scalar(waiting))


def remove(context: Context, leadership: Leadership) -> None:
    removal = SnapshotRemoval(context.sessions, ReconcilerPulse())
    while removal.work(leadership):
        pass


def test_a_dry_run_shows_what_a_deletion_frees_and_changes_nothing(client: httpx.Client, snapshots: Snapshots) -> None:
    before = snapshots.paths()
    shown = client.delete("/v1/jobs/flights/checkpoints/1", params={"dry_run": True})
    assert shown.status_code == 200, shown.text
    manifest = len(snapshots.store.get(f"{snapshots.layout.job}chk-1/manifest.json"))
    answer = shown.json()
    assert (answer["allowed"], answer["reasons"], answer["shared_bytes"]) == (True, [], 100)
    assert (answer["freed_objects"], answer["freed_bytes"]) == (2, 10 + manifest)
    assert snapshots.paths() == before
    assert client.get("/v1/jobs/flights/checkpoints/1").json()["status"] == "COMPLETED"


def test_a_deletion_takes_what_nothing_else_needs(
    client: httpx.Client, context: Context, leadership: Leadership, snapshots: Snapshots
) -> None:
    before = snapshots.paths()
    assert client.delete("/v1/jobs/flights/checkpoints/1").status_code == 202
    assert client.delete("/v1/jobs/flights/savepoints/kept").status_code == 202
    assert client.get("/v1/jobs/flights/checkpoints/1").json()["status"] == "DISCARDED"
    remove(context, leadership)
    gone = {"chk-1/manifest.json", "shared/a", "savepoints/kept/manifest.json", "savepoints/kept/files/b"}
    assert before - snapshots.paths() == gone
    told = {event["kind"]: event for event in client.get("/v1/jobs/flights/events").json()["events"]}
    assert {"CHECKPOINT_DELETED", "SAVEPOINT_DELETED"} <= told.keys()
    assert [told[kind]["actor"] for kind in ("CHECKPOINT_DISCARDED", "SAVEPOINT_DISCARDED")] == ["admin", "admin"]
    again = client.delete("/v1/jobs/flights/checkpoints/1")
    assert (again.status_code, again.json()["code"]) == (409, "SNAPSHOT_NEEDED")
    verdict = client.post("/v1/jobs/flights/checkpoints/1/verify")
    assert (verdict.status_code, verdict.json()["code"]) == (404, "CHECKPOINT_NOT_FOUND")


def test_a_deleted_savepoint_says_so_wherever_it_is_shown(client: httpx.Client, snapshots: Snapshots) -> None:
    def shown() -> list[bool]:
        taken = client.get("/v1/operations/kept").json()
        assert taken["status"] == "COMPLETED", "it was taken"
        is_there = client.get("/v1/jobs/flights/savepoints/kept").status_code == 200
        is_listed = bool(client.get("/v1/jobs/flights/savepoints").json()["savepoints"])
        return [taken["result"]["discarded"], not is_there, not is_listed]

    assert snapshots.paths()
    assert shown() == [False] * 3
    assert client.delete("/v1/jobs/flights/savepoints/kept").status_code == 202
    assert shown() == [True] * 3


def test_a_savepoint_that_was_deleted_right_before_its_job_does_not_stay(
    client: httpx.Client, context: Context, leadership: Leadership, snapshots: Snapshots
) -> None:
    snapshots.take(5, {f"{snapshots.layout.savepoint('stays')}files/b": b"b"}, "stays")
    snapshots.take(6, {f"{snapshots.layout.shared}c": b"c" * 1000})
    assert client.delete("/v1/jobs/flights/savepoints/kept").status_code == 202
    assert client.delete("/v1/jobs/flights").status_code == 204
    remove(context, leadership)
    assert ObjectRemoval(context.sessions, ReconcilerPulse()).work(leadership)
    assert snapshots.paths() == {"savepoints/stays/manifest.json", "savepoints/stays/files/b"}


def test_what_is_still_needed_is_not_deleted(client: httpx.Client, context: Context, snapshots: Snapshots) -> None:
    newest = client.delete("/v1/jobs/flights/checkpoints/4")
    assert (newest.status_code, newest.json()["code"]) == (409, "SNAPSHOT_NEEDED")
    started = client.post("/v1/jobs/flights/start", json={"restore_from": {"savepoint_id": "kept"}})
    assert started.status_code == 202, started.text
    refused = client.delete("/v1/jobs/flights/savepoints/kept")
    assert (refused.status_code, refused.json()["code"]) == (409, "SNAPSHOT_NEEDED")
    assert "flights restores from it" in refused.json()["detail"]
    with context.sessions.begin() as session:
        session.get_one(Job, snapshots.job_id).restore = None
    assert client.delete("/v1/jobs/flights/savepoints/kept", params={"dry_run": True}).json()["allowed"]
    store, path = snapshots.store, f"{snapshots.layout.savepoint('kept')}manifest.json"
    store.create(claim_path(path), encode_document(KIND, FORMAT_VERSION, Claim(JobId("another"))))
    claimed = client.delete("/v1/jobs/flights/savepoints/kept", params={"dry_run": True}).json()
    assert not claimed["allowed"]
    assert "claimed" in claimed["reasons"][0]


def test_a_job_that_runs_keeps_its_two_newest_checkpoints(
    client: httpx.Client, context: Context, snapshots: Snapshots
) -> None:
    """A batch that began before the newest one was complete may still be rebuilt from the one before."""

    def reasons(number: int) -> list[str]:
        answer = client.delete(f"/v1/jobs/flights/checkpoints/{number}", params={"dry_run": True})
        found: list[str] = answer.json()["reasons"]
        return found

    assert [bool(reasons(number)) for number in (1, 2, 4)] == [False, False, True]
    with context.sessions.begin() as session:
        session.get_one(Job, snapshots.job_id).status = JobStatus.RUNNING
    assert [bool(reasons(number)) for number in (1, 2, 4)] == [False, True, True]
    assert "may still use it" in reasons(2)[0]


@pytest.mark.usefixtures("snapshots")
def test_a_job_needs_what_it_began_with_until_it_has_checkpoints_of_its_own(
    client: httpx.Client, context: Context
) -> None:
    def may_go() -> bool:
        answer = client.delete("/v1/jobs/flights/savepoints/kept", params={"dry_run": True})
        allowed: bool = answer.json()["allowed"]
        return allowed

    body = {"name": "copy", "restore_from": {"savepoint_id": "kept"}}
    clone = client.post("/v1/jobs/flights/clone", json=body).json()
    assert not may_go(), "it is to start from it"
    location = client.get("/v1/jobs/flights/checkpoints/3").json()["external_path"]
    with context.sessions.begin() as session:
        job = session.get_one(Job, clone["id"])
        job.restore, job.status = None, JobStatus.RUNNING
        session.add(
            Attempt(
                job_id=job.id, number=1, stage=AttemptStage.ACTIVE, cause="START", parallelism=2,
                created_at_ms=1, restore_from=location,
            )
        )  # fmt: skip
    assert not may_go(), "it has no checkpoint of its own"
    taken = Snapshots(context.sessions, clone["id"])
    taken.take(1, {f"{taken.layout.shared}b": b"b"})
    assert not may_go(), "a batch that runs may be rebuilt from it"
    taken.take(2, {f"{taken.layout.shared}b": b"b"})
    assert may_go()


@pytest.mark.usefixtures("snapshots")
def test_the_refusal_does_not_name_a_job_that_the_user_may_not_see(client: httpx.Client, context: Context) -> None:
    body = {"name": "hidden", "restore_from": {"savepoint_id": "kept"}}
    assert client.post("/v1/jobs/flights/clone", json=body).status_code == 201
    with context.sessions.begin() as session:
        add_token(session, "the-narrow-token", Role.OPERATOR, JobScope(frozenset({"flights"})))
        add_token(session, "the-reader-token", Role.VIEWER)
    client.headers["Authorization"] = "Bearer the-narrow-token"
    refused = client.delete("/v1/jobs/flights/savepoints/kept")
    assert (refused.status_code, refused.json()["code"]) == (409, "SNAPSHOT_NEEDED")
    assert "hidden" not in refused.text
    assert client.delete("/v1/jobs/flights/checkpoints/1").status_code == 202
    assert client.delete("/v1/jobs/hidden/checkpoints/1").status_code == 404
    client.headers["Authorization"] = "Bearer the-reader-token"
    assert client.delete("/v1/jobs/flights/checkpoints/2").status_code == 403


@pytest.mark.real
def test_a_restore_and_a_deletion_at_the_same_moment_exclude_each_other(
    client: httpx.Client, context: Context, snapshots: Snapshots
) -> None:
    """A clone has found its source, and stores that it needs it only after the deletion was stored."""
    location = client.get("/v1/jobs/flights/checkpoints/3").json()["external_path"]
    source = FoundSource(Restore("x", location=location), 16, "spark")
    with context.sessions.begin() as session:
        require_kept(session, source)
        deleting = ThreadPoolExecutor(1).submit(client.delete, "/v1/jobs/flights/savepoints/kept")
        wait_until(lambda: waiting_for_a_lock(context), 30, what="the deletion that waits")
        session.get_one(Job, snapshots.job_id).labels = {}
    assert deleting.result(30).status_code == 202, "nothing was stored that needs it"
    with context.sessions.begin() as session, pytest.raises(RestoreSourceError, match="deleted"):
        require_kept(session, source)


def test_a_job_does_not_start_from_what_was_deleted(client: httpx.Client, snapshots: Snapshots) -> None:
    assert client.delete("/v1/jobs/flights/savepoints/kept").status_code == 202
    refused = client.post("/v1/jobs/flights/start", json={"restore_from": {"savepoint_id": "kept"}})
    assert refused.json()["code"] == "RESTORE_SOURCE_INVALID", "its objects are there until they are deleted"
    assert snapshots.paths()


def verification_of(client: httpx.Client, number: int, *, hashes: bool = False) -> dict[str, Any]:
    """Verifies a checkpoint, and waits for the end of that."""
    begun = client.post(f"/v1/jobs/flights/checkpoints/{number}/verify", json={"hashes": hashes})
    assert begun.status_code == 202, begun.text

    def look() -> dict[str, Any] | None:
        shown: dict[str, Any] = client.get(f"/v1/jobs/flights/checkpoints/{number}/verification").json()
        return shown if shown["ended_at_ms"] is not None else None

    found: dict[str, Any] = wait_until(look, 30, what="the end of the verification")
    return found


@pytest.mark.parametrize("hashes", [False, True])
def test_a_verification_finds_what_is_missing_or_damaged(
    client: httpx.Client, snapshots: Snapshots, hashes: bool
) -> None:
    def verified(number: int) -> dict[str, Any]:
        return verification_of(client, number, hashes=hashes)

    never = client.get("/v1/jobs/flights/checkpoints/1/verification")
    assert (never.status_code, never.json()["code"]) == (404, "VERIFICATION_NOT_FOUND")
    good = verified(1)
    assert (good["status"], good["restorable"], good["files"], good["problems"]) == ("COMPLETED", True, 2, [])
    assert good["bytes_read"] == (110 if hashes else 0)
    snapshots.store.put(f"{snapshots.layout.shared}a", b"x" * 10)
    damaged = verified(1)
    assert damaged["restorable"] is not hashes, "a damaged file of the same length is found by its hash alone"
    snapshots.store.delete([f"{snapshots.layout.shared}b"])
    missing = verified(2)
    assert (missing["restorable"], missing["problem_count"]) == (False, 1)
    assert missing["problems"][0].endswith("shared/b is missing")


def test_a_verification_says_that_it_goes_on_while_it_reads_one_file(
    client: httpx.Client, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may take longer to read than the time after which a verification without news counts as ended."""
    content = b"x" * (4 << 20)
    snapshots.take(5, {f"{snapshots.layout.shared}large": content})
    clock = Clock(now_ms())
    monkeypatch.setattr(keyscale.api.maintenance.verifier, "BEAT_S", 0.0)
    monkeypatch.setattr(keyscale.api.maintenance.verifier, "shared_now_ms", clock)
    monkeypatch.setattr(keyscale.api.snapshots.verifications, "shared_now_ms", clock)
    seen: list[dict[str, Any]] = []
    check = LocalObjectStore.check

    def slow_check(store: LocalObjectStore, path: str, *, on_read: Callable[[int], None], **what: Any) -> None:
        def slowly(size_bytes: int) -> None:
            clock.ms += LOST_MS - 1000
            on_read(size_bytes)
            seen.append(client.get("/v1/jobs/flights/checkpoints/5/verification").json())

        check(store, path, on_read=slowly, **what)

    monkeypatch.setattr(LocalObjectStore, "check", slow_check)
    assert client.post("/v1/jobs/flights/checkpoints/5/verify", json={"hashes": True}).status_code == 202
    wait_until(lambda: len(seen) >= 4, 30, what="the file to be read")
    assert [each["status"] for each in seen] == ["IN_PROGRESS"] * len(seen)
    assert [each["bytes_read"] for each in seen] == [(number + 1) << 20 for number in range(4)]
    wait_until(
        lambda: client.get("/v1/jobs/flights/checkpoints/5/verification").json()["restorable"],
        30,
        what="the end of the verification",
    )


@pytest.mark.usefixtures("snapshots")
def test_a_verification_that_a_shutdown_ends_early_fails_without_a_verdict(
    client: httpx.Client, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(now_ms())
    monkeypatch.setattr(keyscale.api.maintenance.verifier, "shared_now_ms", clock)
    monkeypatch.setattr(keyscale.api.snapshots.verifications, "shared_now_ms", clock)
    reads = threading.Event()

    def endless_check(_store: LocalObjectStore, _path: str, *, on_read: Callable[[int], None], **_what: Any) -> None:
        reads.set()
        wait_until(lambda: on_read(1), 30, what="the end of the verification", poll=0.001)

    monkeypatch.setattr(LocalObjectStore, "check", endless_check)

    def shown() -> dict[str, Any]:
        answer: dict[str, Any] = client.get("/v1/jobs/flights/checkpoints/1/verification").json()
        return answer

    assert client.post("/v1/jobs/flights/checkpoints/1/verify", json={"hashes": True}).status_code == 202
    assert reads.wait(30)
    context.verifier.close()
    clock.ms += LOST_MS
    assert (shown()["status"], shown()["restorable"]) == ("IN_PROGRESS", None)
    clock.ms += 1
    assert (shown()["status"], shown()["restorable"]) == ("FAILED", None)
    assert shown()["problems"] == ["the control plane that verified it has ended"]
    kinds = [event["kind"] for event in client.get("/v1/jobs/flights/events").json()["events"]]
    assert "VERIFICATION_REQUESTED" in kinds
    assert "CHECKPOINT_VERIFIED" not in kinds


def test_two_checkpoints_are_compared_by_operator(client: httpx.Client, snapshots: Snapshots) -> None:
    answer = client.get("/v1/jobs/flights/checkpoints/1/compare", params={"to": 2}).json()
    [operator] = answer["operators"]
    assert (answer["from_checkpoint"]["id"], answer["to_checkpoint"]["id"], answer["reason"]) == (1, 2, None)
    assert (operator["from_state_size"], operator["to_state_size"]) == (110, 1100)
    assert (operator["shared_files"], operator["shared_bytes"]) == (1, 100)
    assert (operator["only_from_bytes"], operator["only_to_bytes"]) == (10, 1000)
    for from_id, to_id in ((1, 9), (9, 1)):
        missing = client.get(f"/v1/jobs/flights/checkpoints/{from_id}/compare", params={"to": to_id}).json()
        assert (missing["code"], missing["detail"]) == ("CHECKPOINT_NOT_FOUND", "the job has no checkpoint 9")
    snapshots.store.delete([f"{snapshots.layout.job}chk-1/manifest.json"])
    without = client.get("/v1/jobs/flights/checkpoints/1/compare", params={"to": 2}).json()
    assert without["operators"][0]["shared_files"] is None
    assert "STATE_OBJECT_NOT_FOUND" in without["reason"]


def test_a_comparison_is_read_in_pages_and_one_of_a_user_at_a_time(
    client: httpx.Client, context: Context, snapshots: Snapshots
) -> None:
    for number, uid in ((5, "first"), (6, "second")):
        snapshots.take(number, {f"{snapshots.layout.shared}{uid}": b"x"}, operator_uid=uid)
    path, uids, after = "/v1/jobs/flights/checkpoints/5/compare", [], None
    for _ in range(2):
        answer = client.get(path, params={"to": 6, "limit": 1} | ({} if after is None else {"after": after})).json()
        [operator], after = answer["operators"], answer["next"]
        uids.append(operator["uid"])
    assert (uids, after) == (["first", "second"], None)
    with context.comparisons.place(client.get("/v1/whoami").json()["id"]):
        refused = client.get(path, params={"to": 6})
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_IN_FLIGHT")
        assert client.get("/v1/jobs/flights/checkpoints/5").status_code == 200


@pytest.mark.parametrize("operators", ["x" * 5000, OPERATORS_MAX + 1])
def test_a_manifest_of_a_hostile_job_is_not_compared(
    client: httpx.Client, snapshots: Snapshots, operators: str | int
) -> None:
    path = f"{snapshots.layout.job}chk-2/manifest.json"
    manifest = read_manifest(snapshots.store, path)
    [one] = manifest.operators
    names = [operators] if isinstance(operators, str) else [str(number) for number in range(operators)]
    many = tuple(msgspec.structs.replace(one, uid=OperatorUid(name), subtasks=()) for name in names)
    snapshots.store.put(path, encode_manifest(msgspec.structs.replace(manifest, operators=many)))
    answer = client.get("/v1/jobs/flights/checkpoints/1/compare", params={"to": 2})
    assert "STATE_DOCUMENT_CORRUPT" in answer.json()["reason"]
    assert len(answer.content) < 5000


def test_a_manifest_that_would_take_much_memory_is_read_by_no_request(
    client: httpx.Client, snapshots: Snapshots, verified: Callable[[int], dict[str, Any]]
) -> None:
    path = f"{snapshots.layout.job}chk-2/manifest.json"
    manifest = read_manifest(snapshots.store, path)
    [one] = manifest.operators
    [handle] = one.subtasks
    shards = (msgspec.structs.replace(handle.shards[0], files=()),) * (STRUCTURES_MAX // 2)
    many = msgspec.structs.replace(one, subtasks=(msgspec.structs.replace(handle, shards=shards),))
    snapshots.store.put(path, encode_manifest(msgspec.structs.replace(manifest, operators=(many,))))
    compared = client.get("/v1/jobs/flights/checkpoints/1/compare", params={"to": 2}).json()
    assert "STATE_DOCUMENT_CORRUPT" in compared["reason"]
    assert "too large for a manifest" in verified(2)["problems"][0]
    start = client.post("/v1/jobs/flights/start", json={"restore_from": {"checkpoint_id": 2}})
    assert (start.status_code, start.json()["code"]) == (422, "RESTORE_SOURCE_INVALID"), start.text
    deletion = client.delete("/v1/jobs/flights/checkpoints/1", params={"dry_run": True}).json()
    assert (deletion["allowed"], "cannot be read" in deletion["reasons"][0]) == (False, True)


def test_files_of_two_subtasks_with_the_same_content_count_twice_in_a_comparison_as_in_the_sizes(
    client: httpx.Client, snapshots: Snapshots
) -> None:
    own = {number: snapshots.layout.savepoint(f"s{number}") for number in (5, 6)}
    for number, letter in ((5, b"d"), (6, b"e")):
        contents = {f"{own[number]}files/{subtask}-OPTIONS": b"o" * 50 for subtask in range(3)}
        contents |= {f"{own[number]}files/{subtask}-CURRENT": letter * 16 for subtask in range(3)}
        snapshots.take(number, contents, f"s{number}")
    [operator] = client.get("/v1/jobs/flights/checkpoints/5/compare", params={"to": 6}).json()["operators"]
    assert (operator["from_state_size"], operator["to_state_size"]) == (198, 198)
    assert [(operator[f"{name}_files"], operator[f"{name}_bytes"]) for name in ("shared", "only_from", "only_to")] == [
        (3, 150),
        (3, 48),
        (3, 48),
    ]


def test_an_object_of_two_subtasks_counts_once_in_a_comparison_and_so_do_the_sizes() -> None:
    one, other = (FileHandle("1.sst", f"shared/{name}", 50, name, shared=True) for name in ("a", "b"))
    sums = {"totals": {"state_size": 200, "entries": 4, "checkpointed_size": 0}}
    before, after = {"totals": [one, other]}, {"totals": [one, other, one, other]}
    for first, second in ((before, after), (after, before)):
        [operator] = operators_compared(["totals"], sums, sums, (first, second))
        assert (operator.from_state_size, operator.to_state_size) == (100, 100)
        assert (operator.shared_files, operator.shared_bytes, operator.only_from_bytes) == (2, 100, 0)


@pytest.mark.real
@pytest.mark.usefixtures("on_socket", "snapshots")
def test_the_commands_verify_compare_and_delete(
    client: httpx.Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYSCALE_TOKEN", TOKEN)

    def run(*arguments: str, code: int = 0) -> Any:
        assert main(["--url", str(client.base_url), *arguments, "--json"]) == code
        shown = capsys.readouterr()
        return json.loads(shown.out) if not code else shown.err

    assert run("checkpoints", "verify", "flights", "1", "--hashes")["restorable"]
    assert run("savepoints", "verify", "flights", "kept")["restorable"]
    assert run("checkpoints", "compare", "flights", "1", "2")["operators"][0]["shared_files"] == 1
    assert "SNAPSHOT_NEEDED" in run("checkpoints", "delete", "flights", "4", code=1)
    assert run("savepoints", "keep", "flights", "kept")["owner"] == "USER"
    assert run("savepoints", "delete", "flights", "kept", "--dry-run")["allowed"]
    run("savepoints", "delete", "flights", "kept")
    assert "SNAPSHOT_NEEDED" in run("savepoints", "delete", "flights", "kept", code=1)


def test_what_is_no_number_is_no_checkpoint_that_could_be_deleted(client: httpx.Client, job: dict[str, Any]) -> None:
    answer = client.delete(f"/v1/jobs/{job['id']}/checkpoints/config")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")


def positions_of(*ends: str, sources: tuple[str, ...] = ("orders",)) -> bytes:
    batches = (BatchEnd(6, "v1", "{}", ("-",)), BatchEnd(7, "v1", "{}", ends))
    return encode_document(positions.KIND, positions.FORMAT_VERSION, SourcePositions(sources, None, batches))


@pytest.fixture
def verified(client: httpx.Client) -> Callable[[int], dict[str, Any]]:
    return lambda number: verification_of(client, number)


@pytest.fixture
def report(client: httpx.Client, context: Context, job: dict[str, Any]) -> Callable[..., None]:
    """Reports what a source of the job still has, as the driver of its attempt does."""
    with context.sessions.begin() as session:
        session.add(
            Attempt(
                job_id=job["id"], number=1, stage=AttemptStage.ACTIVE, cause="START", parallelism=2, created_at_ms=1,
                token_sha256=token_sha256("driver-1"),
            )
        )  # fmt: skip

    def send(uid: str | None = None, state: str = "RUNNING", **earliest: Any) -> None:
        sources = [] if uid is None else [{"uid": uid, "earliest": earliest}]
        heartbeat = {"state": state, "metrics": {"sources": sources}}
        answer = client.post("/driver/heartbeat", json=heartbeat, headers={"Authorization": "Bearer driver-1"})
        assert answer.status_code == 200, answer.text

    return send


def test_a_verification_says_that_records_after_the_checkpoint_have_expired(
    snapshots: Snapshots, verified: Callable[[int], dict[str, Any]], report: Callable[..., None]
) -> None:
    here = positions_of('{"version":1,"splits":{"orders-3":[0,{"offset":120,"topic_id":"t"}]}}')
    snapshots.take(5, {}, positions=here)
    report("orders", **{"orders-3": {"offset": 120, "topic_id": "t"}})
    there = verified(5)
    assert (there["restorable"], there["sources_checked"], there["sources_unchecked"]) == (True, True, None)
    report("orders", **{"orders-3": {"offset": 500, "topic_id": "t"}})
    gone = verified(5)
    assert (gone["status"], gone["restorable"], gone["sources_checked"]) == ("COMPLETED", False, True)
    assert gone["problem_count"] == 1
    assert "source 'orders': split orders-3 begins at 500, and the checkpoint continues at 120" in gone["problems"][0]


def test_a_verification_says_why_the_sources_were_not_asked(
    snapshots: Snapshots, verified: Callable[[int], dict[str, Any]], report: Callable[..., None]
) -> None:
    snapshots.take(5, {}, positions=positions_of('{"version":1,"splits":{"a":[0,1]}}'))
    snapshots.take(6, {}, positions=positions_of("{}", "{}", "{}", sources=("a", "b", "c")))

    def why(number: int) -> str:
        found = verified(number)
        assert (found["restorable"], found["sources_checked"]) == (True, False)
        reason: str = found["sources_unchecked"]
        return reason

    assert why(5) == "the job does not run"
    report("orders", state="RESTORING", a=9)
    assert why(5) == "the job does not run"
    report()
    assert why(5) == "these do not say which records they still have: 'orders'"
    assert why(6) == "these do not say which records they still have: 'a', 'b', 'c'"
    assert why(1) == "it holds no positions of sources"
    snapshots.store.delete([f"{snapshots.layout.shared}a"])
    assert verified(1)["sources_unchecked"] == "its files are damaged or missing"


HOSTILE = {
    "no document": (b"no document", "cannot be read", "its positions cannot be read"),
    "no UTF-8": (b'{"offsets/0": "\xff"}', "cannot be read", "its positions cannot be read"),
    "deep document": (b'{"more":' + b"[" * 100_000, "cannot be read", "its positions cannot be read"),
    "a claim": (encode_document(KIND, 1, Claim(JobId("b"))), "cannot be read", "its positions cannot be read"),
    "old": (b'{"offsets/0": "v1"}', None, "its positions have the form of an older version"),
    "no JSON": (positions_of("x" * 100_000), "source 'orders': its positions cannot be read", None),
    "deep": (positions_of('{"splits":' + "[" * 100_000), "source 'orders': its positions cannot be read", None),
    "NUL": (positions_of("{}", sources=("\0" + "x" * 10_000,)), None, "these do not say which"),
    "many": (positions_of(sources=("orders",) * 100_000), None, "these do not say which"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_positions_that_a_job_has_written_itself_end_a_verification_in_words(
    snapshots: Snapshots, verified: Callable[[int], dict[str, Any]], report: Callable[..., None], kind: str
) -> None:
    written, problem, unchecked = HOSTILE[kind]
    snapshots.take(5, {}, positions=written)
    report("orders", a=9)
    found = verified(5)
    assert (found["status"], found["restorable"]) == ("COMPLETED", problem is None), found
    assert problem is None or problem in found["problems"][0]
    assert (found["sources_unchecked"] or "").startswith(unchecked or "")
    assert found["sources_checked"] is (unchecked is None)
    assert len(json.dumps(found)) < 3000


def test_names_that_cannot_be_stored_end_a_verification_in_words(
    snapshots: Snapshots, verified: Callable[[int], dict[str, Any]]
) -> None:
    path = snapshots.take(5, {})
    manifest = read_manifest(snapshots.store, path)
    snapshots.store.delete([path])
    named = FileHandle("positions.json", "\0" + "x" * 10_000, 1, "0" * 64)
    write_manifest(snapshots.store, msgspec.structs.replace(manifest, positions=named))
    found = verified(5)
    assert found["ended_at_ms"] is not None
    assert not found["restorable"]
    assert "\\x00" in found["problems"][0]
    assert len(found["problems"][0]) < 2000
