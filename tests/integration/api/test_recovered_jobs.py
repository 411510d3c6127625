"""A job whose database is lost is rebuilt from the store alone, and continues exactly where its log ends."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import keyscale.api.errors
import keyscale.api.launching.launcher
from keyscale.api.lifecycle.job_worker import JobWorker
from keyscale.api.lifecycle.leadership import Leadership
from keyscale.api.recovery import recovered_jobs
from keyscale.api.store_check import StoreCheck
from keyscale.db.models import Artifact, DeletedJob
from keyscale.db.repositories import attempts, jobs, leaders, revisions
from keyscale.identifiers import Attempt, JobId
from keyscale.state.documents.checked_document import encode_document
from keyscale.state.documents.job_record import (
    FORMAT_VERSION,
    KIND,
    RecordedOrigin,
    RecordedRestore,
    read_job_record,
    write_job_record,
)
from keyscale.state.layout import Layout, location_of
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.vocabulary import ClaimMode, RestoreMode, Role
from tests.integration.api.conftest import TOKEN, add_token
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings
    from keyscale.state.documents.job_record import JobRecord
    from tests.support.control_plane.reused_database import ReusedDatabase

pytestmark = pytest.mark.either_database

PROGRAM = b"print('the program')\n"
MODULE = b"HELP = 1\n"
IDENTITY = ("id", "name", "labels", "revision", "created_at_ms", "spec")
STRANGER = "f" * 32


class Driver:
    """In place of a driver's process: it does nothing."""

    def poll(self) -> None:
        """It runs."""


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyscale.api.launching.launcher, "start_supervised", lambda *_: Driver())


@pytest.fixture
def store(settings: Settings) -> LocalObjectStore:
    return LocalObjectStore(settings.home / "store", get_bytes_max=64 << 20)


@pytest.fixture
def advance(context: Context) -> Callable[[str], None]:
    """Lets a leader take a job's steps, the last of which launches its driver."""

    def take_steps(job_id: str) -> None:
        with context.sessions.begin() as session:
            leadership = Leadership(context.sessions, leaders.begin_epoch(session, "http://first:1"))
        JobWorker(leadership=leadership, launcher=context.launcher, store=context.store).advance(job_id)

    return take_steps


@pytest.fixture
def create(client: httpx.Client, upload: Callable[..., Any], advance: Callable[[str], None]) -> Callable[[str], Any]:
    """Creates a job with all that a specification can have, and starts it."""

    def start(name: str) -> Any:
        body = {
            "name": name,
            "labels": {"team": "travel"},
            "spec": {
                "artifact_id": upload(PROGRAM, "program.py").json()["id"],
                "libraries": [upload(MODULE, "helpful.py").json()["id"]],
                "parallelism": 2,
                "max_parallelism": 16,
                "parameters": {"input": "/data", "password": {"secret": "ORDERS"}},
                "spark_conf": {"spark.driver.memory": "1g"},
                "checkpoints": {"interval_ms": 5000},
                "batch_interval_ms": 100,
            },
        }
        created = client.post("/v1/jobs", json=body)
        assert created.status_code == 201, created.text
        assert client.post(f"/v1/jobs/{name}/start").status_code == 202
        advance(created.json()["id"])
        return client.get(f"/v1/jobs/{name}").json()

    return start


@pytest.fixture
def lose_database(context: Context, database: ReusedDatabase) -> Callable[[], None]:
    def lose() -> None:
        database.renew()
        with context.sessions.begin() as session:
            add_token(session, TOKEN, Role.ADMIN)

    return lose


def recovered(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/recover", json=body)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["jobs"])


def outcomes(client: httpx.Client, **body: Any) -> dict[str, str]:
    return {
        job["id"]: job["failure"]["code"] if job["outcome"] == "REFUSED" else job["outcome"]
        for job in recovered(client, **body)
    }


def record_of(store: LocalObjectStore, job: dict[str, Any]) -> JobRecord:
    return read_job_record(store, JobId(job["id"]), Attempt(1))


def artifacts_of(job: dict[str, Any]) -> list[str]:
    return [job["spec"]["artifact_id"], *job["spec"]["libraries"]]


def copy_of(store: LocalObjectStore, record: JobRecord, name: str) -> JobRecord:
    """Writes the record and the artifacts of another job with the same specification."""
    copy = msgspec.structs.replace(record, job_id=JobId(hashlib.md5(name.encode()).hexdigest()), name=name)  # noqa: S324
    for each in record.artifacts:
        content = store.get(Layout(record.job_id).recorded_artifact(each.sha256))
        store.put(Layout(copy.job_id).recorded_artifact(each.sha256), content)
    write_job_record(store, copy)
    return copy


def bytes_of(context: Context, client: httpx.Client, artifact_id: str) -> bytes:
    sha256 = client.get(f"/v1/artifacts/{artifact_id}").json()["sha256"]
    return b"".join(context.launcher._read_artifact(sha256))


def test_a_job_is_rebuilt_with_its_id_specification_and_artifacts_and_continues_from_its_log(  # noqa: PLR0917
    client: httpx.Client,
    context: Context,
    create: Callable[[str], Any],
    lose_database: Callable[[], None],
    advance: Callable[[str], None],
    store: LocalObjectStore,
    tmp_path: Path,
) -> None:
    before = create("flights")
    state = StateJob(store, tmp_path / "local", job_id=JobId(before["id"]))
    state.start(2)
    state.run_batch({1: 1})
    state.checkpoint()
    state.run_batch({1: 1, 2: 1})
    savepoint, _ = state.checkpoint("mine")
    of_job = ("/v1/jobs/flights/revisions", *(f"/v1/artifacts/{each}" for each in artifacts_of(before)))
    shown_before = [{**client.get(path).json(), "uploaded_by": None} for path in of_job]
    lose_database()
    assert client.get("/v1/jobs").json()["jobs"] == []

    [answer] = recovered(client, dry_run=True)
    assert (answer["id"], answer["name"], answer["outcome"]) == (before["id"], "flights", "RECOVERED")
    assert client.get("/v1/jobs").json()["jobs"] == []
    assert client.get("/v1/artifacts").json()["artifacts"] == []

    [answer] = recovered(client)
    assert (answer["outcome"], answer["revision"], answer["attempt"]) == ("RECOVERED", 1, 1)
    after = client.get("/v1/jobs/flights").json()
    assert after["status"]["state"] == "STOPPED"
    assert {name: after[name] for name in IDENTITY} == {name: before[name] for name in IDENTITY}
    assert bytes_of(context, client, after["spec"]["artifact_id"]) == PROGRAM
    assert bytes_of(context, client, after["spec"]["libraries"][0]) == MODULE

    assert [{"uploaded_by": None, **client.get(path).json()} for path in of_job] == shown_before
    [ended] = client.get("/v1/jobs/flights/attempts").json()["attempts"]
    known = ("number", "stage", "cause", "revision", "parallelism", "restore_from")
    assert [ended[name] for name in known] == [1, "ENDED", "recover", 1, 2, None]
    [told] = client.get("/v1/events", params={"kind": "JOB_REBUILT"}).json()["events"]
    assert (told["job_id"], told["actor"]) == (before["id"], "admin")
    assert told["details"] == {"attempt": 1, "store_url": before["status"]["store_url"]}
    assert told["message"] == "rebuilt flights from the store, with revision 1"

    shown = client.get("/v1/jobs/flights").json()
    assert outcomes(client) == {before["id"]: "KNOWN"}
    assert client.get("/v1/jobs/flights").json() == shown

    assert client.post("/v1/jobs/flights/start").status_code == 202
    advance(before["id"])
    newest = client.get("/v1/jobs/flights/attempts").json()["attempts"][0]
    assert (newest["number"], newest["restore_from"]) == (2, None), "above all in the log, which names the checkpoint"
    driver = StateJob(store, tmp_path / "new", job_id=JobId(before["id"]))
    driver.recover(2)
    assert (driver.attempt, driver.dump()) == (2, {1: 2, 2: 1})

    again = {"name": "copy", "spec": {"artifact_id": after["spec"]["artifact_id"], "max_parallelism": 16}}
    source = {"location": location_of(after["status"]["store_url"], savepoint.path)}
    assert client.post("/v1/jobs", json={**again, "restore_from": source}).status_code == 201, "the savepoint is usable"


@pytest.mark.real
def test_the_record_has_names_of_secrets_and_is_there_before_the_driver(
    create: Callable[[str], Any], store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def start(*_: object) -> Driver:
        seen.append([info.path for info in store.list("job-records/")])
        return Driver()

    monkeypatch.setattr(keyscale.api.launching.launcher, "start_supervised", start)
    job = create("flights")
    path = Layout(JobId(job["id"])).record(Attempt(1))
    assert path in seen[0]
    data = store.get(path)
    assert b"ORDERS" in data
    assert b"of-the-orders" not in data


@pytest.mark.real
def test_no_driver_is_launched_without_a_record(
    client: httpx.Client, create: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object, **__: object) -> None:
        raise StoreUnavailableError("no answer")

    started: list[object] = []
    monkeypatch.setattr(keyscale.api.launching.launcher, "start_supervised", started.append)
    monkeypatch.setattr(LocalObjectStore, "put", no_answer)
    with pytest.raises(keyscale.api.errors.StoreUnavailableError):
        create("flights")
    assert started == []
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "SUBMITTING", "the step is tried again"


def test_jobs_that_cannot_be_rebuilt_are_refused_and_the_rest_is_rebuilt(  # noqa: PLR0917
    client: httpx.Client,
    context: Context,
    create: Callable[[str], Any],
    upload: Callable[..., Any],
    lose_database: Callable[[], None],
    store: LocalObjectStore,
) -> None:
    good = create("good")
    written = record_of(store, good)
    copies = {
        name: copy_of(store, written, name) for name in ("taken", "damaged", "newer", "hostile", "deleted", "cut")
    }
    ids = {"good": good["id"], **{name: copy.job_id for name, copy in copies.items()}}
    store.put(copies["damaged"].path, b"{}")
    store.put(copies["newer"].path, encode_document(KIND, FORMAT_VERSION + 1, copies["newer"]))
    write_job_record(store, msgspec.structs.replace(copies["hostile"], labels={"team": "x" * 1000}))
    store.put(Layout(copies["cut"].job_id).recorded_artifact(written.artifacts[0].sha256), b"other bytes")
    store.put(Layout(JobId("../x")).record(Attempt(1)), b"no record of a job")

    lose_database()
    program = upload(b"print('another program')\n", "program.py").json()
    other = client.post("/v1/jobs", json={"name": "taken", "spec": {"artifact_id": program["id"]}}).json()
    with context.sessions.begin() as session:
        row = DeletedJob(job_id=ids["deleted"], name="deleted", store_url=good["status"]["store_url"])
        row.deleted_at_ms = row.due_at_ms = 1
        session.add(row)
    expected = {
        ids["good"]: "RECOVERED",
        ids["taken"]: "JOB_NAME_TAKEN",
        ids["damaged"]: "JOB_RECORD_INVALID",
        ids["newer"]: "STATE_FORMAT_TOO_NEW",
        ids["hostile"]: "JOB_RECORD_INVALID",
        ids["deleted"]: "JOB_RECORD_INVALID",
        ids["cut"]: "JOB_RECORD_INVALID",
    }
    first = client.post("/v1/recover", json={}).json()
    assert len(first["jobs"]) == recovered_jobs.JOBS_AT_ONCE
    assert first["next"] == first["jobs"][-1]["id"]
    rest = client.post("/v1/recover", json={"after": first["next"]}).json()
    found = [*first["jobs"], *rest["jobs"]]
    assert rest["next"] is None
    assert {each["id"]: (each["failure"] or {"code": each["outcome"]})["code"] for each in found} == expected
    assert all(each["failure"]["message"] and each["failure"]["advice"] for each in found if each["failure"])
    assert {job["id"] for job in client.get("/v1/jobs").json()["jobs"]} == {ids["good"], other["id"]}
    versions = {each["id"]: (each["name"], each["version"]) for each in client.get("/v1/artifacts").json()["artifacts"]}
    own = zip(artifacts_of(good), [("program", 2), ("helpful", 1)], strict=True)
    assert versions == {program["id"]: ("program", 1), **dict(own)}, "another program has taken the version"
    assert outcomes(client, jobs=[ids["good"], STRANGER]) == {ids["good"]: "KNOWN", STRANGER: "JOB_RECORD_INVALID"}


@pytest.mark.real
def test_a_job_that_the_store_does_not_answer_for_keeps_no_other_job_from_being_rebuilt(
    client: httpx.Client,
    create: Callable[[str], Any],
    lose_database: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away, good = create("away")["id"], create("good")["id"]
    newest_attempt = StoreCheck.newest_attempt

    def answer(self: StoreCheck, store_url: str, job_id: str) -> int:
        if job_id == away:
            raise keyscale.api.errors.StoreUnavailableError("no answer")
        return newest_attempt(self, store_url, job_id)

    lose_database()
    with monkeypatch.context() as patch:
        patch.setattr(StoreCheck, "newest_attempt", answer)
        assert outcomes(client) == {away: "STORE_UNAVAILABLE", good: "RECOVERED"}
    assert outcomes(client) == {away: "RECOVERED", good: "KNOWN"}


def changed_specification(record: JobRecord, **fields: Any) -> JobRecord:
    return msgspec.structs.replace(record, specification={**record.specification, **fields})


WRONG_RECORDS: list[tuple[Callable[[JobRecord], JobRecord], str]] = [
    (lambda record: msgspec.structs.replace(record, name="../../x"), "JOB_RECORD_INVALID"),
    (lambda record: msgspec.structs.replace(record, name=STRANGER), "REQUEST_INVALID"),
    (lambda record: msgspec.structs.replace(record, max_parallelism=1 << 40), "JOB_RECORD_INVALID"),
    (lambda record: msgspec.structs.replace(record, revision=0), "JOB_RECORD_INVALID"),
    (lambda record: msgspec.structs.replace(record, message="\0"), "JOB_RECORD_INVALID"),
    (lambda record: msgspec.structs.replace(record, rewound_to="file:///etc/passwd"), "JOB_RECORD_INVALID"),
    (
        lambda record: msgspec.structs.replace(
            record, restore=RecordedRestore("\0", "STATELESS", None, "NO_CLAIM", allow_non_restored_state=False)
        ),
        "JOB_RECORD_INVALID",
    ),
    (
        lambda record: msgspec.structs.replace(
            record, restore=RecordedRestore("x", "ELSEWHERE", None, "NO_CLAIM", allow_non_restored_state=False)
        ),
        "JOB_RECORD_INVALID",
    ),
    (lambda record: changed_specification(record, parameters={"x": "\0"}), "JOB_RECORD_INVALID"),
    (lambda record: changed_specification(record, batch_interval_ms=10**30), "JOB_RECORD_INVALID"),
    (lambda record: msgspec.structs.replace(record, artifacts=record.artifacts[:1]), "JOB_RECORD_INVALID"),
    (
        lambda record: msgspec.structs.replace(
            record, artifacts=tuple(msgspec.structs.replace(each, filename="../x.py") for each in record.artifacts)
        ),
        "JOB_RECORD_INVALID",
    ),
    (
        lambda record: msgspec.structs.replace(
            record, artifacts=tuple(msgspec.structs.replace(each, kind="ZIP") for each in record.artifacts)
        ),
        "JOB_RECORD_INVALID",
    ),
    (lambda record: changed_specification(record, parameters={"x": ["y"]}), "JOB_RECORD_INVALID"),
    (lambda record: changed_specification(record, more=1), "JOB_RECORD_INVALID"),
    (lambda record: changed_specification(record, parallelism=17), "PARALLELISM_OUT_OF_RANGE"),
    (lambda record: changed_specification(record, secrets=["UNKNOWN"]), "SECRET_UNKNOWN"),
    (
        lambda record: changed_specification(record, spark_conf={"spark.driver.extraJavaOptions": "-x"}),
        "SPARK_CONF_NOT_ALLOWED",
    ),
]


def test_a_record_that_no_request_could_have_made_is_refused(
    client: httpx.Client, create: Callable[[str], Any], lose_database: Callable[[], None], store: LocalObjectStore
) -> None:
    job = create("flights")
    record = record_of(store, job)
    lose_database()
    for change, code in WRONG_RECORDS:
        wrong = change(record)
        write_job_record(store, wrong)
        assert outcomes(client) == {job["id"]: code}, wrong
    assert client.get("/v1/jobs").json()["jobs"] == client.get("/v1/artifacts").json()["artifacts"] == []


def test_the_revision_that_has_run_counts_and_not_one_whose_driver_never_opened_its_attempt(
    client: httpx.Client,
    create: Callable[[str], Any],
    lose_database: Callable[[], None],
    store: LocalObjectStore,
    tmp_path: Path,
) -> None:
    job = create("flights")
    state = StateJob(store, tmp_path / "local", job_id=JobId(job["id"]))
    state.start(2)
    failed = changed_specification(record_of(store, job), parallelism=4)
    write_job_record(store, msgspec.structs.replace(failed, attempt=Attempt(2), revision=2))
    lose_database()
    [answer] = recovered(client)
    assert (answer["revision"], answer["attempt"]) == (1, 2)
    assert client.get("/v1/jobs/flights").json()["spec"]["parallelism"] == 2


def test_a_restore_is_still_pending_unless_the_log_has_its_attempt(  # noqa: PLR0917
    client: httpx.Client,
    context: Context,
    create: Callable[[str], Any],
    lose_database: Callable[[], None],
    store: LocalObjectStore,
    tmp_path: Path,
) -> None:
    job = create("flights")
    path = Layout(JobId(STRANGER)).savepoint("end") + "manifest.json"
    location, moved = location_of(job["status"]["store_url"], path), location_of("s3://lost/bucket", path)
    pending = msgspec.structs.replace(
        record_of(store, job),
        restore=RecordedRestore("once", "REWIND", moved, "CLAIM", allow_non_restored_state=True),
        origins=(RecordedOrigin(moved, "CLAIM"),),
        created_at_ms=4,
        revised_at_ms=5,
        revised_by="ann",
        message="a reason",
    )
    write_job_record(store, pending)
    lose_database()
    recovered(client)
    with context.reads() as session:
        row = jobs.find(session, job["id"])
        assert row is not None
        assert row.restore == {
            "id": "once",
            "mode": RestoreMode.REWIND,
            "location": location,
            "claim_mode": ClaimMode.CLAIM,
            "allow_non_restored_state": True,
        }
        assert row.rewound_to is None
        assert attempts.restored_from(session, job["id"]) == [(location, ClaimMode.CLAIM)], "its driver may read it"
    lose_database()
    StateJob(store, tmp_path / "local", job_id=JobId(job["id"])).start(2)
    recovered(client)
    with context.reads() as session:
        row = jobs.find(session, job["id"])
        assert row is not None
        assert (row.restore, row.rewound_to, row.rewound_by) == (None, location, 1)
        revision = revisions.current(session, row)
        told = (revision.number, revision.created_at_ms, revision.created_by, revision.message)
        assert (row.created_at_ms, told) == (4, (1, 5, "ann", "a reason"))


def test_the_snapshot_of_an_earlier_rewind_is_looked_for_in_the_new_store(
    client: httpx.Client,
    context: Context,
    create: Callable[[str], Any],
    lose_database: Callable[[], None],
    store: LocalObjectStore,
) -> None:
    job = create("flights")
    path = Layout(JobId(job["id"])).savepoint("end") + "manifest.json"
    moved = location_of("s3://lost/bucket", path)
    write_job_record(store, msgspec.structs.replace(record_of(store, job), rewound_to=moved))
    lose_database()
    recovered(client)
    with context.reads() as session:
        row = jobs.find(session, job["id"])
        assert row is not None
        assert row.rewound_to == location_of(job["status"]["store_url"], path)


def test_a_job_is_rebuilt_from_a_copy_of_its_store_and_continues_there(  # noqa: PLR0917
    client: httpx.Client,
    context: Context,
    create: Callable[[str], Any],
    lose_database: Callable[[], None],
    store: LocalObjectStore,
    settings: Settings,
) -> None:
    job = create("flights")
    paths = [Layout(JobId(each * 32)).savepoint("end") + "manifest.json" for each in "ef"]
    old = [location_of(job["status"]["store_url"], path) for path in paths]
    origins = (RecordedOrigin(old[0], "CLAIM"), RecordedOrigin(old[1], "NO_CLAIM"))
    write_job_record(
        store, msgspec.structs.replace(record_of(store, job), origins=origins, rewound_to=old[0], attempt=Attempt(1))
    )
    (settings.home / "store").rename(settings.home / "copy")
    (settings.home / "store").mkdir()
    lose_database()
    assert client.post("/v1/recover", json={}).json()["jobs"] == [], "the store of new jobs has no record"
    copy = LocalObjectStore(settings.home / "copy").url
    [answer] = recovered(client, store_url=copy)
    assert (answer["outcome"], answer["attempt"]) == ("RECOVERED", 1)
    assert client.get("/v1/jobs/flights").json()["status"]["store_url"] == copy
    assert bytes_of(context, client, job["spec"]["artifact_id"]) == PROGRAM
    moved = [location_of(copy, path) for path in paths]
    known = client.get("/v1/jobs/flights/attempts").json()["attempts"]
    assert [(each["number"], each["restore_from"]) for each in known] == [(2, moved[1]), (1, moved[0])]
    with context.reads() as session:
        row = jobs.find(session, job["id"])
        assert row is not None
        assert row.rewound_to == moved[0]
        claimed = [(moved[0], ClaimMode.CLAIM), (moved[1], ClaimMode.NO_CLAIM)]
        assert sorted(attempts.restored_from(session, job["id"])) == claimed


def test_an_artifact_that_the_database_knows_is_taken_if_it_has_the_same_bytes(
    client: httpx.Client,
    context: Context,
    create: Callable[[str], Any],
    upload: Callable[..., Any],
    lose_database: Callable[[], None],
) -> None:
    job = create("flights")
    files = ((MODULE, "helpful.py", "JOB_RECORD_INVALID"), (PROGRAM, "program.py", "RECOVERED"))
    for content, filename, expected in files:
        lose_database()
        uploaded = upload(content, filename, name="mine").json()["id"]
        with context.sessions.begin() as session:
            session.get_one(Artifact, uploaded).id = job["spec"]["artifact_id"]
        assert outcomes(client) == {job["id"]: expected}
    shown = client.get(f"/v1/artifacts/{job['spec']['artifact_id']}").json()
    assert (shown["name"], shown["used_by"]) == ("mine", ["flights"])


def test_the_named_jobs_are_rebuilt_in_their_order_a_few_at_a_time(client: httpx.Client) -> None:
    ids = [f"{number:032x}" for number in range(1, 2 * recovered_jobs.JOBS_AT_ONCE + 2)]
    named = [*reversed(ids), ids[0]]
    found: list[str] = []
    after, answers = None, 0
    while answers == 0 or after is not None:
        answer = client.post("/v1/recover", json={"jobs": named, "after": after}).json()
        assert all(each["outcome"] == "REFUSED" for each in answer["jobs"])
        found += [each["id"] for each in answer["jobs"]]
        after, answers = answer["next"], answers + 1
    assert (found, answers) == (ids, 3)
    whole = client.post("/v1/recover", json={"jobs": ids[: recovered_jobs.JOBS_AT_ONCE]}).json()
    assert (len(whole["jobs"]), whole["next"]) == (recovered_jobs.JOBS_AT_ONCE, None)


def test_a_store_that_does_not_answer_is_said_and_a_wrong_url_is_refused(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = client.post("/v1/recover", json={"store_url": "ftp://host/x"})
    assert (answer.status_code, answer.json()["code"]) == (422, "REQUEST_INVALID")

    def no_answer(*_: object, **__: object) -> None:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(LocalObjectStore, "list", no_answer)
    answer = client.post("/v1/recover", json={})
    assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")
