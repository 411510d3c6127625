"""The messages of drivers, also repeated and late, and the answers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from sqlalchemy import text

from keyscale.address_proof import prove
from keyscale.api.access.rates import RateLimit
from keyscale.api.access.tokens import attempt_token, token_sha256
from keyscale.api.jobs import exceptions as exceptions_service
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.requests import SNAPSHOTS_MAX
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.maintenance.announcer import Announcer
from keyscale.db.models import Operation
from keyscale.db.repositories import attempts, exceptions, jobs, replicas, revisions
from keyscale.db.repositories.pages import PageRequest
from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.jobs.protocol.control_address import UNKNOWN, read_addresses
from keyscale.jobs.protocol.messages import REPORTED_SPLITS_MAX
from keyscale.state.documents.manifest import Manifest, SnapshotKind, write_manifest
from keyscale.state.keys.hashing import HashId
from keyscale.state.objects.opening import open_store
from keyscale.vocabulary import AttemptStage, ChangePhase, ClaimMode, JobStatus, RestoreMode
from tests.integration.api.test_reads import statements
from tests.support.repository import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.either_database

Driver = Any


@pytest.fixture
def attempt(context: Context, job: dict[str, Any], client: httpx.Client) -> Callable[..., int]:
    """Starts the job, if it is not, and stores an attempt of it, whose driver's token is `driver-<number>`."""

    def store(stage: AttemptStage = AttemptStage.ACTIVE, start: dict[str, bool] | None = None) -> int:
        client.post(f"/v1/jobs/{job['id']}/start", json=start)
        with context.sessions.begin() as session:
            found = jobs.lock(session, job["id"])
            assert found is not None
            made = JobTransaction(session, found).create_attempt(found.revision, Cause.START, stage=stage)
            made.token_sha256 = token_sha256(f"driver-{made.number}")
            return made.number

    return store


@pytest.fixture
def end(context: Context, job: dict[str, Any]) -> Callable[[int], None]:
    def end_attempt(number: int) -> None:
        with context.sessions.begin() as session:
            found = jobs.lock(session, job["id"])
            assert found is not None
            JobTransaction(session, found).end_attempt(number)

    return end_attempt


@pytest.fixture
def location(job: dict[str, Any], settings: Settings) -> Callable[[str], str]:
    """The location at which the job publishes a manifest, by its path after JOB."""
    return lambda path: f"{settings.store_url}/{job['id']}{path.removeprefix(JOB)}"


@pytest.fixture
def publish(job: dict[str, Any], settings: Settings) -> Callable[[int, int], None]:
    """Publishes a checkpoint's manifest, as an attempt's driver does, before the first batch."""

    def write(number: int, checkpoint_id: int) -> None:
        manifest = Manifest(
            job_id=JobId(job["id"]),
            checkpoint_id=CheckpointId(checkpoint_id),
            kind=SnapshotKind.CHECKPOINT,
            attempt=Attempt(number),
            batch_id=BatchId(-1),
            log_position=0,
            created_at_ms=1,
            max_parallelism=16,
            hash_id=HashId.SPARK,
            operators=(),
        )
        write_manifest(open_store(settings.store_url), manifest)

    return write


@pytest.fixture
def driver(anonymous: httpx.Client, location: Callable[[str], str]) -> Callable[..., Any]:
    """Sends a message as an attempt's driver. A location of the job, whose id a test does not know, begins with JOB."""

    def send(number: int, path: str, **message: Any) -> Any:
        headers = {"Authorization": f"Bearer driver-{number}"}
        if path == "artifact":
            return anonymous.get("/driver/artifact", headers=headers)
        if (message.get("external_path") or "").startswith(JOB):
            message["external_path"] = location(message["external_path"])
        return anonymous.post(f"/driver/{path}", json=message, headers=headers)

    return send


JOB = "job:"
ATTACH = {"pid": 4711, "host": "elsewhere"}


def report(checkpoint_id: int, status: str = "COMPLETED", **fields: Any) -> dict[str, Any]:
    subtask = {
        "operator_uid": "totals",
        "index": 0,
        "key_group_start": 0,
        "key_group_end": 7,
        "status": status,
        "ack_timestamp": 1500,
        "end_to_end_duration": 500,
        "sync_duration": 7,
        "async_duration": 400,
        "start_delay": 3,
        "checkpointed_size": 10,
        "state_size": 100,
        "files": 2,
        "entries": 36,
        "key_group_entries": list(range(1, 9)),
        "key_group_bytes": [10] * 8,
    }
    other = {
        **subtask,
        "index": 1,
        "key_group_start": 8,
        "key_group_end": 15,
        "checkpointed_size": 30,
        "sync_duration": 9,
    }
    return {
        "checkpoint_id": checkpoint_id,
        "status": status,
        "trigger_timestamp": 1000,
        "latest_ack_timestamp": 1500,
        "end_to_end_duration": 500 + checkpoint_id,
        "checkpointed_size": 40,
        "state_size": 200,
        "external_path": f"{JOB}/chk-{checkpoint_id}/manifest.json" if status == "COMPLETED" else None,
        "batch_id": 5,
        "subtasks": [subtask, other],
        **fields,
    }


def savepoint_report(checkpoint_id: int, savepoint_id: str = "mine") -> dict[str, Any]:
    place = f"{JOB}/savepoints/{savepoint_id}/manifest.json"
    return report(checkpoint_id, is_savepoint=True, savepoint_id=savepoint_id, external_path=place)


def test_of_a_report_that_is_wrong_throughout_one_item_is_named(attempt: Callable[..., int], driver: Driver) -> None:
    number = attempt()
    wrong = [1] * 1000
    answer = driver(number, "heartbeat", state="RUNNING", metrics={"operators": wrong, "graph": wrong})
    assert answer.status_code == 422
    fields = [each["field"] for each in answer.json()["errors"]]
    assert fields == ["body.metrics.operators.0", "body.metrics.graph.0"]


@pytest.mark.real
def test_a_report_has_no_more_parts_than_can_be_read_fast(attempt: Callable[..., int], driver: Driver) -> None:
    number, (part, _) = attempt(), report(1)["subtasks"]
    metrics = {"operators": [{"uid": "totals", "subtasks": [{"index": 1}] * 32_769}]}
    for path, message in (
        ("heartbeat", {"state": "RUNNING", "metrics": {"operators": [{"uid": "x"}] * 1001}}),
        ("heartbeat", {"state": "RUNNING", "metrics": metrics}),
        ("checkpoints", report(1, subtasks=[part] * 65_537)),
    ):
        answer = driver(number, path, **message)
        assert answer.status_code == 422
        assert "at most" in answer.json()["errors"][0]["message"]


def test_a_job_has_one_large_report_read_at_a_time(
    attempt: Callable[..., int], driver: Driver, context: Context, job: dict[str, Any]
) -> None:
    number = attempt()
    graph = [{"uid": f"operator-{each}", "kind": "OPERATOR", "inputs": []} for each in range(2000)]
    with context.reports.place(job["id"]):
        refused = driver(number, "heartbeat", state="RUNNING", metrics={"graph": graph})
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_IN_FLIGHT")
        assert driver(number, "heartbeat", state="RUNNING").status_code == 200
    assert driver(number, "heartbeat", state="RUNNING", metrics={"graph": graph}).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 200_000])
def test_what_is_no_json_is_no_report(attempt: Callable[..., int], anonymous: httpx.Client, body: bytes) -> None:
    headers = {"Authorization": f"Bearer driver-{attempt()}"}
    answer = anonymous.post("/driver/heartbeat", content=body, headers=headers)
    assert (answer.status_code, answer.json()["errors"]) == (422, [{"field": "body", "message": "This is not JSON."}])


def test_reports_that_take_too_much_time_are_delayed_while_other_jobs_report(
    attempt: Callable[..., int], driver: Driver, context: Context, job: dict[str, Any]
) -> None:
    number = attempt()
    assert driver(number, "heartbeat", state="RUNNING").status_code == 200
    reports_ms = context.rates.reports_ms = RateLimit(per_second=0.01, burst=20)
    operators = [{"uid": f"operator-{each}"} for each in range(2000)]
    sent = 0
    while driver(number, "heartbeat", state="RUNNING", metrics={"operators": operators}).status_code != 429:
        sent += 1
        assert sent < 1000
    refused = driver(number, "heartbeat", state="RUNNING")
    assert refused.json()["code"] == "RATE_LIMITED"
    assert int(refused.headers["retry-after"]) > 0
    assert reports_ms.wait_s(job["id"]) > 0
    assert reports_ms.wait_s("another job") == 0
    reports_ms.charge(job["id"], -1_000_000)
    assert driver(number, "heartbeat", state="RUNNING").status_code == 200


def test_an_active_attempts_driver_gets_its_assignment_as_often_as_it_asks(
    job: dict[str, Any], attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    first, again = (driver(number, "attach", **ATTACH).json() for _ in range(2))
    assert first == again
    assert first["decision"] == "run"
    assignment = first["assignment"]
    assert (assignment["job_id"], assignment["attempt"], assignment["parallelism"]) == (job["id"], 1, 2)
    assert (assignment["restore_from"], assignment["next_checkpoint_id"]) == (None, 1)
    assert driver(number, "artifact").content == b"print(1)\n"


def test_a_driver_goes_on_counting_failures_and_restores_as_the_attempt_says(
    context: Context, job: dict[str, Any], attempt: Callable[..., int], driver: Driver
) -> None:
    number, history = attempt(), {"count": 2, "times_ms": [5, 6]}
    location = "file:///store/other/savepoints/s/manifest.json"
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        found.failures = history
        made = JobTransaction(session, found).attempt(number)
        made.restore_mode, made.restore_id, made.restore_from = RestoreMode.REWIND, "pending", location
        made.claim_mode, made.allow_non_restored_state = ClaimMode.CLAIM, True
    assignment = driver(number, "attach", **ATTACH).json()["assignment"]
    assert assignment["failures"] == history
    restore = ("restore_mode", "restore_id", "restore_from", "claim_mode", "allow_non_restored_state")
    assert [assignment[name] for name in restore] == ["rewind", "pending", location, "claim", True]


@pytest.mark.parametrize("body", [None, {}, {"skip_lost_records": True, "reset_time": True}])
def test_a_job_that_is_started_without_lost_records_tells_its_driver(
    client: httpx.Client,
    job: dict[str, Any],
    attempt: Callable[..., int],
    driver: Driver,
    body: dict[str, bool] | None,
) -> None:
    assert client.post(f"/v1/jobs/{job['id']}/start", json={"skip": True}).status_code == 422
    assignment = driver(attempt(start=body), "attach", **ATTACH).json()["assignment"]
    assert assignment["skip_lost_records"] == bool(body)
    assert assignment["time_reset_after"] == (0 if body else None)
    told = [event["message"] for event in client.get(f"/v1/jobs/{job['id']}/events").json()["events"]]
    assert any("without the records" in message for message in told) == bool(body)


def test_a_standby_waits_and_an_ended_attempt_is_sent_away(
    attempt: Callable[..., int], driver: Driver, end: Callable[[int], None]
) -> None:
    standby = attempt(AttemptStage.STANDBY)
    assert driver(standby, "attach", **ATTACH).json()["decision"] == "wait"
    assert driver(standby, "heartbeat", state="STANDBY").json()["commands"] == []
    end(standby)
    assert driver(standby, "attach", **ATTACH).json()["decision"] == "exit"
    assert driver(standby, "heartbeat", state="STANDBY").status_code == 410
    assert driver(standby, "artifact").status_code == 410


def test_a_standby_that_wants_to_prepare_is_told_its_program_before_its_assignment(
    attempt: Callable[..., int], driver: Driver
) -> None:
    standby = attempt(AttemptStage.STANDBY)
    assert driver(standby, "attach", **ATTACH).json()["preview"] is None
    told = driver(standby, "attach", **ATTACH, wants_preview=True).json()
    assert (told["decision"], told["assignment"]) == ("wait", None)
    assert (told["preview"]["attempt"], told["preview"]["artifact_filename"]) == (standby, "job.py")
    assert driver(standby, "artifact").status_code == 200


def test_a_standby_asks_more_often_once_the_savepoint_has_begun_at_which_the_job_stands_still(
    client: httpx.Client, context: Context, attempt: Callable[..., int], driver: Driver
) -> None:
    attempt()
    with context.sessions.begin() as session:
        found = jobs.find(session, "flights")
        assert found is not None
        found.status = JobStatus.RUNNING
    client.post("/v1/jobs/flights/rescale", json={"parallelism": 4, "id": "r"}).raise_for_status()
    standby = attempt(AttemptStage.STANDBY)
    pauses = []
    for phase in (ChangePhase.REQUESTED, ChangePhase.SAVEPOINT):
        with context.sessions.begin() as session:
            session.get_one(Operation, "r").phase = phase
        pauses.append(driver(standby, "attach", **ATTACH).json()["retry_after_ms"])
    assert pauses == [200, 50]


def test_a_running_driver_of_the_version_before_is_carried_on(
    client: httpx.Client, job: dict[str, Any], attempt: Callable[..., int], anonymous: httpx.Client, driver: Driver
) -> None:
    number, heartbeat = attempt(), (GOLDEN / "heartbeat-v1.json").read_bytes()
    headers = {"Authorization": f"Bearer driver-{number}", "Content-Type": "application/json"}
    assignment = driver(number, "attach", **ATTACH).json()["assignment"]
    flat = ("parallelism", "max_parallelism", "hash_id", "parameters", "checkpoints", "restart", "batch_interval_ms")
    assert [assignment[name] for name in flat] == [assignment["spec"][name] for name in flat]

    told = anonymous.post("/driver/heartbeat", content=heartbeat, headers=headers)  # of a later revision
    assert told.status_code == 200
    assert told.json()["settings"].items() >= {"revision": 1, **{name: assignment[name] for name in flat[4:]}}.items()
    stop = client.post(f"/v1/jobs/{job['id']}/stop").json()["id"]
    [command] = anonymous.post("/driver/heartbeat", content=heartbeat, headers=headers).json()["commands"]
    assert command.items() >= {"id": stop, "kind": "STOP_WITH_SAVEPOINT", "savepoint_id": stop, "drain": False}.items()

    shown = client.get(f"/v1/jobs/{job['id']}").json()
    assert (shown["status"]["attempt"]["number"], shown["metrics"]["input_records"]) == (number, 100)


def test_commands_are_given_until_their_result_has_arrived(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver, location: Callable[[str], str]
) -> None:
    number = attempt()
    client.post("/v1/jobs/flights/drain", json={"id": "end-of-day"})
    assert driver(number, "heartbeat", state="RESTORING").json()["commands"] == []
    wanted = {
        "id": "end-of-day",
        "kind": "STOP_WITH_SAVEPOINT",
        "savepoint_id": "end-of-day",
        "drain": True,
        "next_attempt": None,
        "return_attempt": None,
        "limit_ms": None,
        "is_withdrawn": False,
    }
    for _ in range(2):
        assert driver(number, "heartbeat", state="RUNNING").json()["commands"] == [wanted]
    result = {
        "command_id": "end-of-day",
        "status": "COMPLETED",
        "location": location("/savepoints/end-of-day/manifest.json"),
        "checkpoint_id": 3,
    }
    for _ in range(2):
        assert driver(number, "heartbeat", state="STOPPED", results=[result]).json()["commands"] == []
    shown = client.get("/v1/operations/end-of-day").json()
    assert shown["status"] == "IN_PROGRESS", "the job has not ended"
    assert shown["result"] == {"location": result["location"], "checkpoint_id": 3, "discarded": False}
    late = {**result, "status": "FAILED", "failure": {"code": "X", "message": "late"}}
    driver(number, "heartbeat", state="STOPPED", results=[late])
    assert client.get("/v1/operations/end-of-day").json() == shown


def test_only_some_snapshots_of_a_job_wait_at_once(
    client: httpx.Client, context: Context, job: dict[str, Any], attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        found.status = JobStatus.RUNNING
    answers = [client.post("/v1/jobs/flights/checkpoint", json={"id": f"c{one}"}) for one in range(SNAPSHOTS_MAX + 1)]
    assert [answer.status_code for answer in answers] == [202] * SNAPSHOTS_MAX + [429]
    driver(number, "heartbeat", state="RUNNING", results=[{"command_id": "c0", "status": "COMPLETED"}])
    assert client.post("/v1/jobs/flights/savepoint").status_code == 202
    assert client.post("/v1/jobs/flights/savepoint").json()["code"] == "TOO_MANY_IN_FLIGHT"


def test_a_driver_answers_only_the_commands_of_its_own_job(
    client: httpx.Client, job: dict[str, Any], attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    client.post("/v1/jobs", json={"name": "other", "spec": {"artifact_id": job["spec"]["artifact_id"]}})
    client.post("/v1/jobs/other/start")
    client.post("/v1/jobs/other/stop", json={"id": "others"})
    result = {"command_id": "others", "status": "COMPLETED"}
    assert driver(number, "heartbeat", state="RUNNING", results=[result]).status_code == 200
    assert client.get("/v1/operations/others").json()["status"] == "IN_PROGRESS"


def test_a_checkpoint_is_shown_under_flinks_names(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    for message in (report(1, "IN_PROGRESS", subtasks=[]), report(1), report(1), savepoint_report(2)):
        assert driver(number, "checkpoints", **message).status_code == 204
    shown = client.get("/v1/jobs/flights/checkpoints").json()
    assert shown["counts"] == {"restored": 0, "total": 2, "in_progress": 0, "completed": 2, "failed": 0}
    assert [one["id"] for one in shown["history"]] == [2, 1]
    assert shown["latest"]["completed"]["id"] == 1
    assert shown["latest"]["savepoint"]["checkpoint_type"] == "SAVEPOINT"
    assert shown["summary"]["end_to_end_duration"] == {
        "min": 501, "max": 502, "avg": 501, "p50": 501.5, "p90": 502.0, "p95": 502.0, "p99": 502.0, "p999": 502.0,
    }  # fmt: skip
    [operator] = client.get("/v1/jobs/flights/checkpoints/1").json()["operators"]
    assert (operator["uid"], operator["num_subtasks"], operator["checkpointed_size"]) == ("totals", 2, 40)
    assert operator["summary"]["checkpoint_duration"]["sync"] == {"min": 7, "max": 9, "avg": 8}
    assert operator["subtasks"][1]["checkpoint"] == {"sync": 9, "async": 400}
    assert (operator["subtasks"][1]["index"], operator["subtasks"][1]["key_group_start"]) == (1, 8)
    assert (operator["entries"], operator["summary"]["entries"]) == (72, {"min": 36, "max": 36, "avg": 36})
    assert operator["subtasks"][0]["key_group_entries"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert operator["subtasks"][0]["key_group_bytes"] == [10] * 8


def test_a_file_that_subtasks_share_counts_once_in_the_size_of_their_operator(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    shared, before = report(1), report(2)  # the second one is of a driver that does not say what its subtasks share
    for subtask, distinct_size in zip(shared["subtasks"], (100, 25), strict=True):
        subtask["distinct_size"] = distinct_size
    for message in (shared, before):
        assert driver(number, "checkpoints", **message).status_code == 204
    sizes = [client.get(f"/v1/jobs/flights/checkpoints/{id_}").json()["operators"][0]["state_size"] for id_ in (1, 2)]
    assert sizes == [125, 200]
    [operator] = client.get("/v1/jobs/flights/checkpoints/1/compare", params={"to": 2}).json()["operators"]
    assert (operator["from_state_size"], operator["to_state_size"]) == (125, 200)


def test_a_failure_after_which_a_driver_restarts_is_one_event(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    driver(number, "heartbeat", state="RUNNING")
    failed = {
        "failures": {"count": 1, "times_ms": [5]},
        "last_failure": {"code": "JOB_FUNCTION_FAILED", "message": "ValueError: not a plate"},
        "restart": {"type": "fixed-delay", "attempts": 3, "delay_ms": 9},
    }
    for _ in range(2):
        assert driver(number, "heartbeat", state="RESTORING", metrics=failed).status_code == 200
    events = client.get("/v1/jobs/flights/events").json()["events"]
    [event] = [event for event in events if event["kind"] == "RUN_FAILED"]
    assert event["details"]["failure_code"] == "JOB_FUNCTION_FAILED"
    assert "plate" not in event["message"], "events outlive their job"
    assert "plate" in client.get("/v1/jobs/flights").json()["status"]["attempt"]["metrics"]["last_failure"]["message"]
    shown = client.get("/v1/jobs/flights").json()["status"]["attempt"]["metrics"]
    assert (shown["failures"]["count"], shown["restart"]["attempts"]) == (1, 3)


@pytest.mark.real
def test_a_heartbeat_may_report_thousands_of_subtasks(attempt: Callable[..., int], driver: Driver) -> None:
    subtasks = [{"index": index, "read_records": 10**9, "input_ms": 1234.56789} for index in range(20_000)]
    metrics = {"operators": [{"uid": "counts", "subtasks": subtasks}]}
    assert driver(attempt(), "heartbeat", state="RUNNING", metrics=metrics).status_code == 200


TOO_MUCH: list[dict[str, Any]] = [
    {"operators": [{"uid": "a", "subtasks": [{"index": at} for at in range(32_769)]}]},
    {"operators": [{"uid": str(at)} for at in range(1001)]},
    {"sinks": [{"uid": str(at)} for at in range(1001)]},
    {"graph": [{"uid": str(at), "kind": "SINK"} for at in range(10_001)]},
    {"graph": [{"uid": "a", "kind": "SINK", "inputs": ["b"] * 10_000}]},
    {"graph": [{"uid": "a", "kind": "SINK", "inputs": ["b" * 1001]}]},
    {"operators": [{"uid": "a" * 1001}]},
]


@pytest.mark.parametrize("metrics", TOO_MUCH, ids=range(len(TOO_MUCH)))
def test_a_heartbeat_that_is_more_than_a_job_can_have_is_refused_and_not_kept(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver, metrics: dict[str, Any]
) -> None:
    number = attempt()
    answer = driver(number, "heartbeat", state="RUNNING", metrics=metrics)
    assert answer.status_code == 422
    assert answer.json()["code"] in {"REQUEST_INVALID", "REPORT_INVALID"}
    assert driver(number, "heartbeat", state="RUNNING", metrics={"input_records": 5}).status_code == 200
    assert client.get("/v1/jobs/flights").json()["metrics"]["input_records"] == 5


def test_no_figure_of_a_driver_keeps_its_attempt_from_ending(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver, end: Callable[[int], None]
) -> None:
    number = attempt()
    figures = {
        "batches": 1,
        **dict.fromkeys(("busy_ratio", "processed_records_per_second", "batch_duration_ms"), 1e308),
    }
    for beat in range(6):
        state = ("RUNNING", "STOPPING")[beat % 2]
        assert driver(number, "heartbeat", state=state, metrics=figures).status_code == 200
    sizes = dict.fromkeys(("checkpointed_size", "state_size", "end_to_end_duration", "processed_records"), 2**53)
    for checkpoint_id in range(1, 4):
        assert driver(number, "checkpoints", **report(checkpoint_id, **sizes)).status_code == 204
    wrong = dict.fromkeys(sizes, 2**53 + 1)
    assert driver(number, "checkpoints", **report(4, **wrong)).status_code == 422
    assert driver(number, "checkpoints", **report(5, "IN_PROGRESS")).status_code == 204
    end(number)
    shown = client.get("/v1/jobs/flights/series", params={"names": "busy_ratio"}).json()["series"]["busy_ratio"]
    assert [value for value in shown if value is not None] == [1e15]
    [today] = client.get("/v1/jobs/flights/days").json()["days"]
    assert (today["checkpoints_failed"], today["checkpointed_bytes"]) == (1, 3 * 2**53)


def test_a_complete_checkpoint_stays_complete_and_numbers_are_never_used_again(
    client: httpx.Client,
    attempt: Callable[..., int],
    driver: Driver,
    end: Callable[[int], None],
    location: Callable[[str], str],
) -> None:
    first = attempt()
    driver(first, "checkpoints", **report(7))
    driver(first, "checkpoints", **report(7, "IN_PROGRESS"))
    driver(first, "checkpoints", **report(8, "IN_PROGRESS"))
    end(first)
    second = attempt()
    assignment = driver(second, "attach", **ATTACH).json()["assignment"]
    assert assignment["restore_from"] == location("/chk-7/manifest.json")
    assert assignment["next_checkpoint_id"] == 9
    statuses = {one["id"]: one["status"] for one in client.get("/v1/jobs/flights/checkpoints").json()["history"]}
    assert statuses == {7: "COMPLETED", 8: "FAILED"}


def test_a_late_report_of_an_ended_attempt_counts_only_if_its_manifest_is_published(
    client: httpx.Client,
    attempt: Callable[..., int],
    driver: Driver,
    end: Callable[[int], None],
    publish: Callable[..., None],
) -> None:
    first = attempt()
    end(first)
    second = attempt()
    publish(first, 1)
    publish(second, 5)
    driver(second, "checkpoints", **report(2))
    for late in (report(1), report(2, "FAILED"), report(3, "IN_PROGRESS"), report(4), report(5), report(6, "FAILED")):
        assert driver(first, "checkpoints", **late).status_code == 204
    statuses = {one["id"]: one["status"] for one in client.get("/v1/jobs/flights/checkpoints").json()["history"]}
    assert statuses == {1: "COMPLETED", 2: "COMPLETED"}, "of 4 there is no manifest, and 5 is another attempt's"


def test_a_day_counts_a_checkpoint_that_failed_with_its_attempt_until_a_late_report_completes_it(
    client: httpx.Client,
    attempt: Callable[..., int],
    driver: Driver,
    end: Callable[[int], None],
    publish: Callable[..., None],
) -> None:
    def counted() -> tuple[int, int]:
        [today] = client.get("/v1/jobs/flights/days").json()["days"]
        counts = client.get("/v1/jobs/flights/checkpoints").json()["counts"]
        both = (today["checkpoints_completed"], today["checkpoints_failed"])
        assert both == (counts["completed"], counts["failed"])
        return both

    number = attempt()
    for unfinished in (report(1, "IN_PROGRESS"), report(2, "IN_PROGRESS"), report(3, "FAILED")):
        driver(number, "checkpoints", **unfinished)
    end(number)
    assert counted() == (0, 3)
    publish(number, 2)
    for _ in range(2):
        assert driver(number, "checkpoints", **report(2)).status_code == 204
    assert counted() == (1, 2)


def test_a_late_success_of_an_older_attempt_does_not_replace_a_newer_attempts_checkpoint(
    client: httpx.Client,
    attempt: Callable[..., int],
    driver: Driver,
    end: Callable[[int], None],
    publish: Callable[..., None],
) -> None:
    first = attempt()
    end(first)
    second = attempt()
    publish(first, 1)
    for status in ("IN_PROGRESS", "FAILED"):
        assert driver(second, "checkpoints", **report(1, status, batch_id=9)).status_code == 204
        assert driver(first, "checkpoints", **report(1, batch_id=5)).status_code == 204
        [shown] = client.get("/v1/jobs/flights/checkpoints").json()["history"]
        assert shown["status"] == status
    end(second)
    assignment = driver(attempt(), "attach", **ATTACH).json()["assignment"]
    assert assignment["restore_from"] is None


@pytest.mark.parametrize(
    "lie",
    [
        {"external_path": "file:///elsewhere/other/chk-3/manifest.json"},
        {"external_path": f"{JOB}/chk-2/manifest.json"},
        {"external_path": f"{JOB}/../other/chk-3/manifest.json"},
        {"checkpoint_id": 2**63 - 1, "external_path": f"{JOB}/chk-{2**63 - 1}/manifest.json"},
        {"checkpoint_id": 0},
        {"subsumed_checkpoint_ids": [2**62]},
        {"batch_id": -2},
        {"is_savepoint": True},
    ],
    ids="-".join,
)
def test_a_report_that_cannot_be_true_is_refused_and_the_job_can_still_be_started(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver, end: Callable[[int], None], lie: dict[str, Any]
) -> None:
    number = attempt()
    answer = driver(number, "checkpoints", **{**report(3), **lie})
    assert (answer.status_code, answer.json()["code"]) == (422, "REPORT_INVALID")
    assert client.get("/v1/jobs/flights/checkpoints").json()["history"] == []
    end(number)
    assignment = driver(attempt(), "attach", **ATTACH).json()["assignment"]
    assert (assignment["restore_from"], assignment["next_checkpoint_id"]) == (None, 1)


def test_a_subtask_that_the_attempt_does_not_have_is_refused(attempt: Callable[..., int], driver: Driver) -> None:
    number = attempt()
    first, second = report(1)["subtasks"]
    for wrong in ({**second, "index": 2}, {**second, "index": 0}, {**second, "key_group_end": 16}):
        answer = driver(number, "checkpoints", **report(1, subtasks=[first, wrong]))
        assert answer.json()["code"] == "REPORT_INVALID"


def test_a_driver_reports_no_more_splits_than_each_heartbeat_can_hold(
    attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()

    def reported(*sources: tuple[str, int]) -> Any:
        found = [{"uid": uid, "earliest": {str(split): split for split in range(count)}} for uid, count in sources]
        return driver(number, "heartbeat", state="RUNNING", metrics={"sources": found})

    half = REPORTED_SPLITS_MAX // 2
    assert reported(("a", half), ("b", half)).status_code == 200
    for wrong in ([("a", half), ("b", half + 1)], [("a", 1), ("a", 1)]):
        assert reported(*wrong).json()["code"] == "REPORT_INVALID"
    assert reported(("a", REPORTED_SPLITS_MAX + 1)).status_code == 422


def test_a_savepoint_elsewhere_does_not_complete_a_command(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    client.post("/v1/jobs/flights/stop", json={"id": "end"})
    result = {"command_id": "end", "status": "COMPLETED", "location": "file:///other/savepoints/end/manifest.json"}
    answer = driver(number, "heartbeat", state="STOPPED", results=[result])
    assert answer.json()["code"] == "REPORT_INVALID"
    assert client.get("/v1/operations/end").json()["status"] == "IN_PROGRESS"


def test_a_standby_cannot_say_that_it_runs_the_job_or_answer_its_commands(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver, location: Callable[[str], str]
) -> None:
    attempt()
    standby = attempt(AttemptStage.STANDBY)
    client.post("/v1/jobs/flights/stop", json={"id": "end"})
    place = location("/savepoints/end/manifest.json")
    result = {"command_id": "end", "status": "COMPLETED", "location": place}
    for lie in ({"state": "RUNNING"}, {"state": "FINISHED"}, {"state": "STANDBY", "results": [result]}):
        assert driver(standby, "heartbeat", **lie).json()["code"] == "REPORT_INVALID"
    assert client.get("/v1/operations/end").json()["status"] == "IN_PROGRESS"


def test_a_jobs_secrets_are_masked_in_what_its_driver_reports(
    client: httpx.Client, context: Context, attempt: Callable[..., int], driver: Driver, job: dict[str, Any]
) -> None:
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        revision = revisions.current(session, found)
        revision.spec = {**revision.spec, "secrets": ["ORDERS"]}
    number = attempt()
    said = {"code": "X", "message": "of-the-orders and more", "traceback": "raise E('of-the-orders')"}
    metrics = {
        "last_failure": said,
        "sink_outage": {"uid": "s", "since_ms": 1, "reason": "of-the-orders is refused"},
        "sources": [{"uid": "o", "earliest": {"of-the-orders/0": {"offset": 1, "topic_id": "of-the-orders"}}}],
    }
    driver(number, "heartbeat", state="RUNNING", metrics={})
    driver(number, "heartbeat", state="RUNNING", metrics={**metrics, "failures": {"count": 1, "times_ms": [5]}})
    driver(number, "heartbeat", state="FAILED", failure=said, metrics={**metrics, "clean_up": {"failure": said}})
    driver(number, "checkpoints", **report(1, "FAILED", failure_message="X: of-the-orders"))
    kept = client.get("/v1/jobs/flights/exceptions").json()["exceptions"]
    assert [(each["message"], each["traceback"]) for each in kept] == [("***** and more", "raise E('*****')")] * 2
    shown = client.get("/v1/jobs/flights").text + client.get("/v1/jobs/flights/checkpoints").text
    assert shown.count("*****") > 6
    assert "of-the-orders" not in shown


def test_retention_subsumes_checkpoints_and_never_savepoints(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    driver(number, "checkpoints", **report(1))
    driver(number, "checkpoints", **savepoint_report(2))
    driver(number, "checkpoints", **report(3, subsumed_checkpoint_ids=[1, 2]))
    shown = {
        one["id"]: (one["status"], one["discarded"])
        for one in client.get("/v1/jobs/flights/checkpoints").json()["history"]
    }
    assert shown == {1: ("SUBSUMED", True), 2: ("COMPLETED", False), 3: ("COMPLETED", False)}


def test_heartbeats_show_on_the_attempt(client: httpx.Client, attempt: Callable[..., int], driver: Driver) -> None:
    number = attempt()
    driver(number, "attach", **ATTACH)
    driver(
        number,
        "heartbeat",
        state="RUNNING",
        restored_at_ms=900,
        first_commit={"batch_id": 0, "at_ms": 1000},
        last_commit={"batch_id": 3, "at_ms": 4000},
        metrics={"batches": 4, "input_records": 40},
        a_field_of_the_future=1,
    )
    shown = client.get("/v1/jobs/flights").json()["status"]["attempt"]
    assert (shown["driver_state"], shown["pid"], shown["restored_at_ms"]) == ("RUNNING", 4711, 900)
    assert (shown["first_commit_at_ms"], shown["last_commit_batch_id"]) == (1000, 3)
    assert shown["metrics"]["input_records"] == 40
    assert client.get("/v1/jobs/flights/attempts").json()["attempts"] == [shown]


@pytest.mark.real
def test_a_heartbeat_rewrites_the_narrow_row_only(
    context: Context, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    versions: dict[str, set[tuple[Any, ...]]] = {}
    for batch in range(4):
        beat = {"state": "RUNNING", "restored_at_ms": 900, "first_commit": {"batch_id": 0, "at_ms": 1000}}
        answer = driver(
            number,
            "heartbeat",
            **beat,
            last_commit={"batch_id": batch, "at_ms": 1000 + batch},
            metrics={"batches": batch},
        )
        assert answer.status_code == 200, answer.text
        with context.engine.connect() as connection:
            for table in ("jobs", "attempts", "heartbeats"):
                found = connection.execute(text(f"SELECT ctid::text, xmin::text FROM {table}")).all()  # noqa: S608
                assert len(found) == 1
                versions.setdefault(table, set()).add(tuple(found[0]))
    assert {table: len(seen) for table, seen in versions.items()} == {"jobs": 1, "attempts": 1, "heartbeats": 4}


@pytest.mark.real
def test_a_report_rewrites_only_the_subtasks_that_have_changed(
    context: Context, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    begun = report(1, "IN_PROGRESS")
    first, second = begun["subtasks"]
    versions: list[dict[int, str]] = []
    for subtasks in ([first, second], [{**first, "status": "COMPLETED"}, second]):
        assert driver(number, "checkpoints", **{**begun, "subtasks": subtasks}).status_code == 204
        with context.engine.connect() as connection:
            rows = connection.execute(text("SELECT subtask, ctid::text FROM checkpoint_subtasks")).all()
            versions.append({row[0]: row[1] for row in rows})
    before, after = versions
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_faults_of_a_running_job_are_in_its_health(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    driver(number, "attach", **ATTACH)
    driver(number, "heartbeat", state="RUNNING")
    assert client.get("/v1/jobs/flights").json()["status"]["health"]["reasons"] == []
    failure = {"code": "STATE_RETENTION_BLOCKED", "message": "chk-2 cannot be read", "advice": "Repair it."}
    metrics = {
        "store_away_since_ms": 7,
        "clean_up": {"failing_since_ms": 8, "failure": failure},
        "lost_records": 120,
        "lost_records_since_ms": 9,
    }
    driver(number, "heartbeat", state="RUNNING", metrics=metrics)
    away, lost, blocked = client.get("/v1/jobs/flights").json()["status"]["health"]["reasons"]
    assert (lost["code"], lost["since_ms"]) == ("SOURCE_RECORDS_LOST", 9)
    assert "120 records" in lost["message"]
    assert (away["code"], away["since_ms"]) == ("STATE_STORE_UNAVAILABLE", 7)
    assert blocked == {
        "code": "STATE_RETENTION_BLOCKED",
        "message": "old checkpoints are not deleted: chk-2 cannot be read",
        "since_ms": 8,
        "advice": "Repair it.",
        "severity": 20,
        "more_subtasks_help": False,
    }
    driver(number, "heartbeat", state="RUNNING")
    assert client.get("/v1/jobs/flights").json()["status"]["health"]["reasons"] == []


def test_a_control_plane_proves_that_it_knows_an_attempt(
    context: Context, job: dict[str, Any], attempt: Callable[..., int], anonymous: httpx.Client
) -> None:
    number = attempt()
    answer = anonymous.get("/driver/proof", params={"attempt": f"{job['id']}:{number}", "nonce": "n"})
    expected = prove(token_sha256(f"driver-{number}"), "n", context.settings.control_url)
    assert answer.json() == {"proof": expected}
    chunked = anonymous.request("GET", "/driver/proof", params=answer.request.url.params, content=iter([b"x"]))
    assert chunked.json() == {"proof": expected}
    for unknown in (f"{job['id']}:2", f"{job['id']}:{10**30}", "x:1", "x\0:1", ":", ""):
        refused = anonymous.get("/driver/proof", params={"attempt": unknown, "nonce": "n"})
        assert (refused.status_code, refused.json()["code"]) == (401, "TOKEN_INVALID"), unknown


def test_a_control_plane_proves_which_attempts_its_database_has_lost(
    context: Context, job: dict[str, Any], attempt: Callable[..., int], anonymous: httpx.Client
) -> None:
    """As a backup does that is older than the attempt."""
    number = attempt()
    with context.reads() as session:
        key = replicas.shared_key(session)

    def answer(given: str, salt: str = "of-the-token") -> tuple[int, dict[str, Any]]:
        found = anonymous.get("/driver/unknown", params={"attempt": given, "salt": salt, "nonce": "n"})
        return found.status_code, found.json()

    for lost in (f"{job['id']}:{number + 1}", "gone:1", f"{job['id']}:{number}"):  # the last one has another token
        token = attempt_token(key, lost, "of-the-token")
        proof = prove(token_sha256(token), "n", context.settings.control_url, UNKNOWN)
        assert answer(lost) == (200, {"proof": proof}), lost
    with context.sessions.begin() as session:
        known = attempts.find(session, job["id"], number)
        assert known is not None
        known.token_sha256 = token_sha256(attempt_token(key, f"{job['id']}:{number}", "of-the-token"))
    refused = [f"{job['id']}:{number}", f"{job['id']}:{10**30}", "x\0:1", ":", ""]
    assert [answer(given)[0] for given in refused] == [401] * len(refused)
    assert answer(f"{job['id']}:{number + 1}", "a\0b")[0] == 401


def test_a_heartbeat_is_answered_with_the_replicas_that_are_alive(
    context: Context, attempt: Callable[..., int], driver: Driver, settings: Settings
) -> None:
    store_url = settings.store_url
    other = Announcer(context.sessions, place="elsewhere", url="http://elsewhere:1", store_url=store_url)
    other.announce()
    context.announcer.announce()
    number = attempt()
    urls = driver(number, "heartbeat", state="RUNNING").json()["control_urls"]
    assert set(urls) == {"http://elsewhere:1", settings.control_url}
    assert {address.url for address in read_addresses(open_store(store_url))} == set(urls)
    other.start()
    other.close()
    context.announcer.announce()
    assert context.announcer.urls == [settings.control_url]
    assert [address.url for address in read_addresses(open_store(store_url))] == [settings.control_url]


FAILED = {"code": "JOB_FUNCTION_FAILED", "message": "ValueError: the key is of-the-orders", "operator_uid": "totals",
          "subtask": 1, "traceback": 'Traceback (most recent call last):\n  File "job.py"\nValueError: no'}  # fmt: skip


def test_each_failure_is_kept_once_with_its_traceback(
    client: httpx.Client,
    attempt: Callable[..., int],
    driver: Callable[..., Any],
    context: Context,
    end: Callable[[int], None],
) -> None:
    number = attempt()
    driver(number, "attach", **ATTACH)
    driver(number, "heartbeat", state="RUNNING", metrics={})
    counted = {"failures": {"count": 1, "times_ms": [5]}, "last_failure": FAILED}
    for _ in range(2):
        assert driver(number, "heartbeat", state="RUNNING", metrics=counted).status_code == 200
    for _ in range(2):
        last = {**FAILED, "message": "it failed again"}
        assert driver(number, "heartbeat", state="FAILED", metrics=counted, failure=last).status_code == 200
    found = client.get("/v1/jobs/flights/exceptions").json()["exceptions"]
    assert [(each["message"], each["type"], each["attempt"]) for each in found] == [
        ("it failed again", "ValueError", number),
        ("ValueError: the key is of-the-orders", "ValueError", number),
    ]
    assert (found[0]["operator_uid"], found[0]["subtask"], found[0]["code"]) == ("totals", 1, "JOB_FUNCTION_FAILED")
    page = client.get("/v1/jobs/flights/exceptions", params={"limit": 1}).json()
    rest = client.get("/v1/jobs/flights/exceptions", params={"after": page["next"]}).json()
    assert [page["exceptions"][0], *rest["exceptions"]] == found
    end(number)
    assert len(client.get("/v1/jobs/flights/exceptions").json()["exceptions"]) == 2, "its end is no failure"
    with context.sessions.begin() as session:
        job = jobs.lock(session, client.get("/v1/jobs/flights").json()["id"])
        assert job is not None
        transaction = JobTransaction(session, job)
        lost = transaction.create_attempt(job.revision, Cause.RECOVER)
        transaction.end_attempt(lost.number, {"code": "DRIVER_LOST", "message": "the driver is gone"})
    newest = client.get("/v1/jobs/flights/exceptions").json()["exceptions"][0]
    assert (newest["code"], newest["type"], newest["attempt"]) == ("DRIVER_LOST", None, lost.number)


def test_a_failure_that_ends_the_driver_is_one_exception_though_it_is_counted_too(
    client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()
    driver(number, "heartbeat", state="RUNNING", metrics={})
    counted = {"failures": {"count": 1, "times_ms": [5]}, "last_failure": FAILED}
    assert driver(number, "heartbeat", state="FAILED", metrics=counted, failure=FAILED).status_code == 200
    assert len(client.get("/v1/jobs/flights/exceptions").json()["exceptions"]) == 1


def test_a_limited_number_of_failures_is_kept(
    client: httpx.Client, context: Context, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exceptions, "KEPT", 3)
    with context.sessions.begin() as session:
        for number in range(6):
            exceptions.record(session, job["id"], 1, number, {"code": "DRIVER_LOST", "message": "x" * 100_000})
    found = client.get("/v1/jobs/flights/exceptions").json()["exceptions"]
    assert [each["at_ms"] for each in found] == [5, 4, 3]
    monkeypatch.setattr(exceptions_service, "ANSWER_CHARACTERS_MAX", 2 * exceptions.TEXT_MAX)
    first = client.get("/v1/jobs/flights/exceptions").json()
    rest = client.get("/v1/jobs/flights/exceptions", params={"after": first["next"]}).json()
    assert [len(first["exceptions"]), len(rest["exceptions"]), rest["next"]] == [2, 1, None]
    monkeypatch.setattr(exceptions_service, "ANSWER_CHARACTERS_MAX", 1)
    assert client.get("/v1/jobs/flights/exceptions").json()["exceptions"] == found[:1], "a long one alone"
    assert len(found[0]["message"]) == exceptions.TEXT_MAX
    assert client.delete("/v1/jobs/flights").status_code == 204
    with context.sessions() as session:
        assert exceptions.list_page(session, job["id"], PageRequest(10)).rows == []


class TestRepetitions:
    """Heartbeats of an idle driver to which nothing has happened."""

    IDLE: ClassVar[dict[str, Any]] = {
        "state": "RUNNING",
        "revision": 1,
        "restored_at_ms": 5,
        "last_commit": {"batch_id": 3, "at_ms": 6},
        "metrics": {"waits_for_input": True, "batches": 4, "input_records": 9, "busy_ratio": 0.25},
    }

    @pytest.fixture
    def number(self, attempt: Callable[..., int], driver: Driver, context: Context, job: dict[str, Any]) -> int:
        """An attempt that has caught up and settled, with its first heartbeat."""
        number = attempt()
        assert driver(number, "heartbeat", **self.IDLE).status_code == 200
        with context.sessions.begin() as session:
            found = attempts.find(session, job["id"], number)
            assert found is not None
            found.settled_at_ms = 1
        return number

    @pytest.fixture
    def seen(self, context: Context, job: dict[str, Any]) -> Callable[[int], Any]:
        """Reads an attempt of the job."""

        def look(number: int) -> Any:
            with context.sessions() as session:
                found = attempts.find(session, job["id"], number)
                assert found is not None
                return found

        return look

    @pytest.mark.real
    def test_a_repetition_is_one_statement_that_stores_its_time(
        self, context: Context, driver: Driver, number: int, seen: Callable[[int], Any]
    ) -> None:
        driver(number, "heartbeat", **self.IDLE)  # the first of its step is a sample, too
        before = seen(number)
        with statements(context) as sent:
            assert driver(number, "heartbeat", **self.IDLE).json() == {
                "commands": [],
                "diagnostics": [],
                "settings": None,
                "sleeps": False,
                "control_urls": [],
            }
        sent = [statement for statement in sent if "series_points" not in statement]  # perhaps another step has begun
        assert [statement.split()[0] for statement in sent] == ["SELECT", "UPDATE"], "the token, the time"
        after = seen(number)
        assert after.heartbeat_at_ms >= before.heartbeat_at_ms
        assert after.metrics == before.metrics

    def test_the_first_repetition_of_a_step_is_a_sample(self, context: Context, driver: Driver, number: int) -> None:
        with context.sessions.begin() as session:
            session.execute(text("UPDATE heartbeats SET at_ms = at_ms - 20000"))
            session.execute(text("DELETE FROM series_points"))
        driver(number, "heartbeat", **self.IDLE)
        with context.sessions() as session:
            sampled = session.execute(text("SELECT input_records, busy_ratio FROM series_points")).all()
        assert set(sampled) == {(9, 0.25)}

    @pytest.mark.parametrize(
        "changed",
        [
            {"state": "FAILED", "failure": {"code": "X", "message": "it failed"}},
            {"last_commit": {"batch_id": 4, "at_ms": 7}},
            {"restored_at_ms": 8},
            {"metrics": {**IDLE["metrics"], "input_records": 10}},
            {"metrics": {**IDLE["metrics"], "waits_for_input": False}},
        ],
    )
    def test_whatever_differs_is_stored(
        self, driver: Driver, number: int, seen: Callable[[int], Any], changed: dict[str, Any]
    ) -> None:
        assert driver(number, "heartbeat", **{**self.IDLE, **changed}).status_code == 200
        found, told = seen(number), {**self.IDLE, **changed}
        assert (found.driver_state, found.restored_at_ms) == (told["state"], told["restored_at_ms"])
        assert found.last_commit_batch_id == told["last_commit"]["batch_id"]
        assert told["metrics"].items() <= found.metrics.items()

    def test_a_repetition_brings_a_new_command(
        self, client: httpx.Client, job: dict[str, Any], driver: Driver, number: int, context: Context
    ) -> None:
        with context.sessions.begin() as session:
            found = jobs.lock(session, job["id"])
            assert found is not None
            found.status = JobStatus.RUNNING
        assert client.post("/v1/jobs/flights/savepoint", json={}).is_success
        assert len(driver(number, "heartbeat", **self.IDLE).json()["commands"]) == 1

    def test_a_repetition_of_other_settings_brings_the_settings(self, driver: Driver, number: int) -> None:
        assert driver(number, "heartbeat", **{**self.IDLE, "revision": 7}).json()["settings"]["revision"] == 1

    def test_an_attempt_that_is_over_repeats_nothing(
        self, driver: Driver, number: int, end: Callable[[int], None]
    ) -> None:
        end(number)
        assert driver(number, "heartbeat", **self.IDLE).status_code == 410


def test_a_driver_sleeps_as_requested_unless_a_command_waits(
    context: Context, job: dict[str, Any], client: httpx.Client, attempt: Callable[..., int], driver: Driver
) -> None:
    number = attempt()

    def sleeps(state: str) -> bool:
        return bool(driver(number, "heartbeat", state=state).json()["sleeps"])

    assert not sleeps("RUNNING")
    with context.sessions.begin() as session:
        found = attempts.find(session, job["id"], number)
        assert found is not None
        found.sleep_requested_at_ms = 1
        jobs.lock(session, job["id"]).status = JobStatus.SLEEPING  # type: ignore[union-attr] # the job exists
    assert sleeps("RUNNING")
    assert sleeps("SLEEPING")
    shown = client.get(f"/v1/jobs/{job['id']}").json()["status"]
    [running] = [each for each in shown["conditions"] if each["type"] == "RUNNING"]
    assert (running["status"], running["reason"]) == ("FALSE", "SLEEPING")
    client.post(f"/v1/jobs/{job['id']}/savepoint", json={})
    assert not sleeps("SLEEPING")


def test_a_sleeping_job_takes_settings_over_and_wakes_only_if_they_do_not_let_it_sleep(
    context: Context, client: httpx.Client, job: dict[str, Any], attempt: Callable[..., int], driver: Driver
) -> None:
    def change(**settings: Any) -> None:
        answer = client.patch("/v1/jobs/flights", json={"spec": settings}, headers={"If-Match": "*"})
        assert (answer.status_code, answer.json()["status"]) == (200, "COMPLETED"), answer.text

    def told(revision: int) -> tuple[bool, bool]:
        answer = driver(number, "heartbeat", state="SLEEPING", revision=revision).json()
        return answer["sleeps"], answer["settings"] is not None

    def since_ms() -> int:
        conditions = client.get("/v1/jobs/flights").json()["status"]["conditions"]
        [running] = [each for each in conditions if each["type"] == "RUNNING"]
        assert running["reason"] == "SLEEPING"
        return int(running["since_ms"])

    change(autoscaler={"mode": "ACTIVE", "sleep_after_ms": 60_000})
    number = attempt()
    with context.sessions.begin() as session:
        found = attempts.find(session, job["id"], number)
        assert found is not None
        found.sleep_requested_at_ms = 1
        jobs.lock(session, job["id"]).status = JobStatus.SLEEPING  # type: ignore[union-attr] # the job exists
    assert told(2) == (True, False)
    asleep_ms = since_ms()
    change(checkpoints={"interval_ms": 7000})
    assert told(2) == (True, True)
    change(autoscaler={"mode": "MONITORING"})
    assert told(3) == (False, True)
    assert since_ms() == asleep_ms
