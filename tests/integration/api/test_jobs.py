from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.job_limits import JobLimits
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.db.models import Attempt, Checkpoint, DeletedJob
from keyscale.db.repositories import jobs, revisions
from keyscale.jobs.protocol.messages import DriverMetrics, Failure, FailureHistory
from keyscale.vocabulary import AttemptStage, CheckpointStatus, ClaimMode, JobStatus
from tests.support.control_plane.bodies import with_spec
from tests.support.control_plane.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.either_database

FAILURE = Failure(code="X", message="it broke")


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_created_job_is_shown_by_id_and_by_name(client: httpx.Client, job: dict[str, Any]) -> None:
    assert job["status"]["state"] == "CREATED"
    assert (job["spec"]["parallelism"], job["spec"]["max_parallelism"], job["status"]["artifact_version"]) == (2, 16, 1)
    assert client.get(f"/v1/jobs/{job['id']}").json() == job
    assert client.get("/v1/jobs/flights").json() == job
    assert client.get("/v1/jobs").json() == {"jobs": [job], "next": None}


def test_the_default_of_max_parallelism_is_that_of_flink(client: httpx.Client, job: dict[str, Any]) -> None:
    for name, parallelism, expected in (("a", 1, 128), ("b", 200, 512)):
        body = with_spec(name=name, artifact_id=job["spec"]["artifact_id"], parallelism=parallelism)
        assert client.post("/v1/jobs", json=body).json()["spec"]["max_parallelism"] == expected


@pytest.mark.parametrize(
    "body",
    [{"parallelism": 0}, {"parallelism": -1}, {"max_parallelism": 0}, {"max_parallelism": 40_000}],
)
def test_a_parallelism_out_of_range_is_refused(client: httpx.Client, job: dict[str, Any], body: dict[str, int]) -> None:
    full = with_spec(name="x", artifact_id=job["spec"]["artifact_id"], **{"max_parallelism": 16, **body})
    assert code_of(client.post("/v1/jobs", json=full)) == (422, "REQUEST_INVALID")


def test_a_parallelism_above_the_number_of_key_groups_is_refused(client: httpx.Client, job: dict[str, Any]) -> None:
    body = with_spec(name="x", artifact_id=job["spec"]["artifact_id"], max_parallelism=16, parallelism=17)
    assert code_of(client.post("/v1/jobs", json=body)) == (422, "PARALLELISM_OUT_OF_RANGE")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "../x"},
        {"name": "0123456789abcdef0123456789abcdef"},
        {"name": "x", "unknown": 1},
        {"name": "x", "parallelism": "two"},
        {"name": "x", "hash_id": "python"},
        {"name": "x", "parameters": {"a": 1}},
        {"name": "x", "checkpoints": {"interval_ms": 0}},
        {"name": "x", "restart": {"type": "sometimes"}},
        {"name": "x", "restart": {"type": "fixed-delay", "attempts": 0}},
        {"name": "x", "restart": {"type": "none", "attempts": 1}},
        {},
    ],
)
def test_an_invalid_request_is_refused_without_repeating_its_content(
    client: httpx.Client, job: dict[str, Any], body: dict[str, Any]
) -> None:
    answer = client.post("/v1/jobs", json=with_spec(artifact_id=job["spec"]["artifact_id"], **body))
    assert code_of(answer) == (422, "REQUEST_INVALID")
    assert "0123456789abcdef" not in answer.text


def test_a_job_keeps_its_restart_strategy_with_the_defaults_filled_in(
    client: httpx.Client, job: dict[str, Any]
) -> None:
    body = {
        "name": "x",
        "spec": {"artifact_id": job["spec"]["artifact_id"], "restart": {"type": "fixed-delay", "attempts": 3}},
    }
    assert client.post("/v1/jobs", json=body).json()["spec"]["restart"] == {
        "type": "fixed-delay",
        "attempts": 3,
        "delay_ms": 1000,
    }
    assert client.get("/v1/jobs/x").json()["spec"]["restart"]["attempts"] == 3
    assert job["spec"]["restart"] is None


@pytest.mark.real
def test_a_name_is_used_once(client: httpx.Client, job: dict[str, Any]) -> None:
    body = {"name": "flights", "spec": {"artifact_id": job["spec"]["artifact_id"]}}
    assert code_of(client.post("/v1/jobs", json=body)) == (409, "JOB_NAME_TAKEN")


def test_a_job_needs_an_artifact_that_can_be_run(client: httpx.Client, upload: Callable[..., Any]) -> None:
    assert code_of(client.post("/v1/jobs", json={"name": "x", "spec": {"artifact_id": "none"}})) == (
        404,
        "ARTIFACT_NOT_FOUND",
    )
    from tests.integration.api.test_artifacts import make_zip  # noqa: PLC0415 - shared by both modules

    jar = upload(make_zip(**{"META-INF/MANIFEST.MF": b"x"}), "lib.jar").json()
    assert code_of(client.post("/v1/jobs", json={"name": "x", "spec": {"artifact_id": jar["id"]}})) == (
        422,
        "ARTIFACT_NOT_RUNNABLE",
    )


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.jars": "evil.jar"},
        {"spark.driver.extraJavaOptions": "-javaagent:x"},
        {"spark.sql.adaptive.enabled": "true"},
        {"spark.executor.memory": "1g --class Evil"},
        {"spark.executor.memory": ""},
        {"spark.executor.memory": "\u0661g"},
    ],
)
def test_spark_settings_that_load_code_or_break_guarantees_are_refused(
    client: httpx.Client, job: dict[str, Any], conf: dict[str, str]
) -> None:
    body = {"name": "x", "spec": {"artifact_id": job["spec"]["artifact_id"], "spark_conf": conf}}
    assert code_of(client.post("/v1/jobs", json=body)) == (422, "SPARK_CONF_NOT_ALLOWED")
    allowed = with_spec(**body, spark_conf={"spark.executor.memory": "2g"})
    assert client.post("/v1/jobs", json=allowed).status_code == 201


def test_an_action_that_needs_a_running_job_is_refused_and_leaves_the_job_unchanged(
    client: httpx.Client, job: dict[str, Any]
) -> None:
    for action, body in (
        ("stop", {}),
        ("cancel", None),
        ("savepoint", {}),
        ("checkpoint", {}),
        ("restart", {}),
        ("rescale", {"parallelism": 4}),
    ):
        assert code_of(client.post(f"/v1/jobs/flights/{action}", json=body)) == (409, "JOB_STATUS_CONFLICT"), action
    assert client.get("/v1/jobs/flights").json() == job


def test_a_started_job_is_not_started_again_nor_deleted(client: httpx.Client, job: dict[str, Any]) -> None:
    started = client.post(f"/v1/jobs/{job['id']}/start")
    assert (started.status_code, started.json()["kind"], started.json()["status"]) == (202, "START", "IN_PROGRESS")
    assert code_of(client.post(f"/v1/jobs/{job['id']}/start")) == (409, "JOB_STATUS_CONFLICT")
    assert code_of(client.delete(f"/v1/jobs/{job['id']}")) == (409, "JOB_STATUS_CONFLICT")
    assert client.get("/v1/jobs/flights/events").json()["events"][0]["kind"] == "JOB_STARTED"


def test_a_stop_with_the_same_operation_id_is_the_same_stop(client: httpx.Client, job: dict[str, Any]) -> None:
    client.post(f"/v1/jobs/{job['id']}/start")
    first = client.post("/v1/jobs/flights/stop", json={"id": "mine"})
    again = client.post("/v1/jobs/flights/stop", json={"id": "mine"})
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert (first.json()["id"], first.json()["status"]) == ("mine", "IN_PROGRESS")
    assert client.get("/v1/jobs/flights").json()["status"]["state"] == "SAVEPOINTING"
    assert code_of(client.post("/v1/jobs/flights/stop", json={"id": "other"})) == (409, "JOB_STATUS_CONFLICT")
    shown = client.get("/v1/operations/mine").json()
    assert (shown["kind"], shown["status"], shown["job_id"]) == ("STOP", "IN_PROGRESS", job["id"])
    assert client.get("/v1/jobs/flights/operations").json()["operations"][0] == shown
    assert client.get("/v1/jobs/flights/savepoints").json()["savepoints"] == [], "it is not taken yet"


@pytest.mark.parametrize("operation_id", ["../x", "a b", "", "x" * 65, "rescale:x", "-x"])
def test_an_operation_id_cannot_be_a_path(client: httpx.Client, job: dict[str, Any], operation_id: str) -> None:
    client.post(f"/v1/jobs/{job['id']}/start")
    answer = client.post("/v1/jobs/flights/stop", json={"id": operation_id})
    assert code_of(answer) == (422, "REQUEST_INVALID")


def test_an_unavailable_store_is_reported_and_leaves_the_job_unchanged(
    client: httpx.Client, job: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    if store.exists():
        store.rename(tmp_path / "unplugged")
    store.write_text("a file where the directory was")
    assert code_of(client.post("/v1/jobs/flights/start")) == (503, "STORE_UNAVAILABLE")
    assert client.get("/v1/jobs/flights").json() == job
    body = {"name": "x", "spec": {"artifact_id": job["spec"]["artifact_id"]}}
    assert code_of(client.post("/v1/jobs", json=body)) == (503, "STORE_UNAVAILABLE")


def test_no_route_finds_a_job_that_does_not_exist(client: httpx.Client) -> None:
    for path in (
        "",
        "/attempts",
        "/events",
        "/logs",
        "/checkpoints",
        "/checkpoints/config",
        "/savepoints",
        "/operations",
    ):
        assert code_of(client.get(f"/v1/jobs/none{path}")) == (404, "JOB_NOT_FOUND"), path


def test_a_job_that_never_ran_has_no_logs_or_checkpoints(client: httpx.Client, job: dict[str, Any]) -> None:
    base = f"/v1/jobs/{job['id']}"
    assert code_of(client.get(f"{base}/logs")) == (404, "ATTEMPT_NOT_FOUND")
    assert code_of(client.get(f"{base}/logs?attempt=9")) == (404, "ATTEMPT_NOT_FOUND")
    assert code_of(client.get(f"{base}/logs?attempt=../../etc")) == (422, "REQUEST_INVALID")
    assert code_of(client.get(f"{base}/checkpoints/7")) == (404, "CHECKPOINT_NOT_FOUND")
    assert code_of(client.get(f"{base}/checkpoints/{1 << 70}")) == (422, "REQUEST_INVALID")
    assert code_of(client.get(f"{base}/savepoints/none")) == (404, "SAVEPOINT_NOT_FOUND")
    assert code_of(client.get("/v1/operations/none")) == (404, "OPERATION_NOT_FOUND")
    assert client.get(f"{base}/checkpoints").json()["counts"]["total"] == 0
    config = client.get(f"{base}/checkpoints/config").json()
    assert (config["interval"], config["mode"], config["max_concurrent"]) == (10_000, "exactly_once", 1)


def test_a_job_names_its_secrets_itself_or_as_the_value_of_a_parameter(
    client: httpx.Client, upload: Callable[..., Any]
) -> None:
    program = upload().json()["id"]
    body = with_spec(name="orders", artifact_id=program, parameters={"database": {"secret": "ORDERS"}})
    created = client.post("/v1/jobs", json=body).json()
    assert created["spec"]["parameters"] == {"database": {"secret": "ORDERS"}}
    assert created["spec"]["secrets"] == ["ORDERS"]
    listed = client.post("/v1/jobs", json=with_spec(name="listed", artifact_id=program, secrets=["ORDERS"])).json()
    assert listed["spec"]["secrets"] == ["ORDERS"]
    for wrong in ({"secrets": ["NONE"]}, {"parameters": {"database": {"secret": "NONE"}}}):
        answer = client.post("/v1/jobs", json=with_spec(name="wrong", artifact_id=program, **wrong))
        assert (answer.status_code, answer.json()["code"]) == (422, "SECRET_UNKNOWN")
    wrong = with_spec(name="wrong", artifact_id=program, secrets=["../token"])
    assert client.post("/v1/jobs", json=wrong).status_code == 422


def test_parameters_that_look_like_secrets_are_masked(client: httpx.Client, upload: Callable[..., Any]) -> None:
    parameters = {"db_password": "hunter2", "url": "pg://me:hunter2@db/orders", "options": "ssl=on password=hunter2"}
    body = {
        "name": "orders",
        "spec": {"artifact_id": upload().json()["id"], "parameters": {**parameters, "input": "/data"}},
    }
    shown = client.post("/v1/jobs", json=body)
    assert shown.json()["spec"]["parameters"] == {
        "db_password": "*****",
        "url": "pg://me:*****@db/orders",
        "options": "ssl=on password=*****",
        "input": "/data",
    }
    assert "hunter2" not in client.get("/v1/jobs/orders").text + client.get("/v1/jobs").text


def test_the_log_shows_neither_the_attempts_token_nor_a_secret(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    client.post(f"/v1/jobs/{job['id']}/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        revision = revisions.current(session, found)
        revision.spec = {**revision.spec, "secrets": ["ORDERS"]}
        JobTransaction(session, found).create_attempt(found.revision, Cause.START, stage=AttemptStage.ACTIVE)
    context.launcher.prepare(job["id"], 1)
    directory = context.settings.runs_directory / job["id"] / "1"
    token = (directory / "token").read_text()
    (directory / "driver.log").write_text(f"a line of an old version with {token} and of-the-orders\n")
    text = client.get(f"/v1/jobs/{job['id']}/logs").json()["text"]
    assert text == "a line of an old version with ***** and *****\n"


class TestWhatTheAdministratorAllows:
    """Limits and Spark settings hold for each request that can exceed them."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        allowed = frozenset({"spark.sql.extensions"})
        return replace(settings, job_limits=JobLimits(parallelism_max=3), spark_conf_allowed=allowed)

    def test_a_spark_setting_that_is_allowed_is_taken_and_another_one_is_not(
        self, client: httpx.Client, job: dict[str, Any]
    ) -> None:
        for name, status in (("spark.sql.extensions", 201), ("spark.sql.catalog.mine", 422)):
            body = {
                "name": name.rpartition(".")[2],
                "spec": {"artifact_id": job["spec"]["artifact_id"], "spark_conf": {name: "a.B"}},
            }
            assert client.post("/v1/jobs", json=body).status_code == status, name
        assert client.post("/v1/jobs/flights/start").status_code == 202

    def test_no_request_gives_a_job_more_subtasks_than_are_allowed(
        self, client: httpx.Client, context: Context, job: dict[str, Any]
    ) -> None:
        body = {"name": "x", "spec": {"artifact_id": job["spec"]["artifact_id"], "parallelism": 4}}
        assert code_of(client.post("/v1/jobs", json=body)) == (422, "JOB_LIMIT_EXCEEDED")
        assert code_of(client.post("/v1/jobs/flights/start", json={"parallelism": 4})) == (422, "JOB_LIMIT_EXCEEDED")
        changed = client.patch("/v1/jobs/flights", json={"spec": {"parallelism": 4}}, headers={"If-Match": '"1"'})
        assert code_of(changed) == (422, "JOB_LIMIT_EXCEEDED")
        assert client.post("/v1/jobs/flights/start", json={"parallelism": 3}).status_code == 202
        with context.sessions.begin() as session:
            found = jobs.lock(session, job["id"])
            assert found is not None
            JobTransaction(session, found).create_attempt(found.revision, Cause.START)
            found.status = JobStatus.RUNNING
        assert code_of(client.post("/v1/jobs/flights/rescale", json={"parallelism": 4})) == (422, "JOB_LIMIT_EXCEEDED")


def test_a_second_start_waits_for_lost_records_again_and_counts_from_the_beginning(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    asked = {"skip_lost_records": True, "reset_time": True}
    assert client.post("/v1/jobs/flights/start", json=asked).status_code == 202
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        assert (found.skip_lost_records, found.time_reset_after) == (True, 0)
        JobTransaction(session, found).create_attempt(found.revision, Cause.START)
        JobTransaction(session, found).settle(JobStatus.FAILED, {"code": "X", "message": "it failed"})
        found.consecutive_failures, found.restarts, found.next_start_at_ms = 3, 4, 5
        found.failures, found.started_at_ms = {"count": 3, "times_ms": [1]}, 1
    assert client.get("/v1/jobs/flights").json()["status"]["failure"]["code"] == "X"
    assert client.post("/v1/jobs/flights/start").status_code == 202
    with context.sessions() as session:
        again = jobs.find(session, job["id"])
    assert again is not None
    assert again.time_reset_after is None
    assert (again.skip_lost_records, again.failures, again.ended_at_ms, again.failure) == (False, None, None, None)
    assert (again.consecutive_failures, again.restarts, again.next_start_at_ms) == (0, 0, 0)
    assert (again.started_at_ms or 0) > 1


def test_a_deleted_job_leaves_no_process_and_gives_back_what_it_has_claimed(
    client: httpx.Client, context: Context, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[str, int]] = []
    monkeypatch.setattr(type(context.launcher), "kill", lambda _, *of: killed.append(of))
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        transaction = JobTransaction(session, found)
        for is_reaped, claim_mode in ((True, ClaimMode.CLAIM), (False, ClaimMode.NO_CLAIM)):
            made = transaction.create_attempt(1, Cause.START)
            made.restore_from, made.claim_mode = f"file:///store/{claim_mode}", claim_mode
            transaction.end_attempt(made.number)
            made.reaped = is_reaped
        transaction.settle(JobStatus.STOPPED, None)
    assert client.delete("/v1/jobs/flights").status_code == 204
    assert killed == [(job["id"], 2)]
    with context.sessions() as session:
        assert session.get_one(DeletedJob, job["id"]).claimed == ["file:///store/CLAIM"]


@pytest.mark.parametrize("newest_is_savepoint", [False, True])
def test_the_state_has_the_size_of_the_newest_snapshot_and_the_latest_checkpoint_is_not_a_savepoint(
    client: httpx.Client, context: Context, job: dict[str, Any], newest_is_savepoint: bool
) -> None:
    sizes = (
        "end_to_end_duration",
        "checkpointed_size",
        "processed_records",
        "num_subtasks",
        "num_acknowledged_subtasks",
    )
    with context.sessions.begin() as session:
        for number, is_savepoint in ((1, not newest_is_savepoint), (2, newest_is_savepoint)):
            session.add(
                Checkpoint(
                    job_id=job["id"],
                    checkpoint_id=number,
                    attempt=1,
                    status=CheckpointStatus.COMPLETED,
                    is_savepoint=is_savepoint,
                    trigger_timestamp=number,
                    state_size=100 * number,
                    **dict.fromkeys(sizes, 1),
                )
            )
    for shown in (client.get("/v1/jobs/flights").json(), client.get("/v1/jobs").json()["jobs"][0]):
        assert shown["metrics"]["state_size"] == 200
        assert shown["status"]["latest_checkpoint"]["id"] == (1 if newest_is_savepoint else 2)


def test_a_job_runs_since_its_active_driver_first_said_so(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    client.post("/v1/jobs/flights/start")
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        made = JobTransaction(session, found).create_attempt(1, Cause.START)
        made.running_at_ms, made.driver_state = 77, "RUNNING"
        made.metrics = DriverMetrics(
            batches=1, last_failure=FAILURE, failures=FailureHistory(count=1, times_ms=[50]), store_away_since_ms=9
        ).model_dump()
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["status"]["running_since_ms"], shown["status"]["failure"]["code"]) == (77, "X"), (
        "no batch was committed since"
    )
    assert [item["since_ms"] for item in shown["status"]["health"]["reasons"]] == [None, 9]
    with context.sessions.begin() as session:
        made = session.get_one(Attempt, (job["id"], 1))
        made.last_commit_at_ms = 50
    assert client.get("/v1/jobs/flights").json()["status"]["failure"] is None
    with context.sessions.begin() as session:
        found = jobs.lock(session, job["id"])
        assert found is not None
        JobTransaction(session, found).end_attempt(1)
    shown = client.get("/v1/jobs/flights").json()
    assert (shown["status"]["running_since_ms"], shown["status"]["health"]["reasons"]) == (None, [])


def test_a_clone_that_starts_at_once_has_its_state_its_revision_and_its_events(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    path = Snapshots(context.sessions, job["id"]).take(3, {})
    body = {"name": "copy", "start": True, "allow_non_restored_state": True, "spec": {"parallelism": 4}}
    answer = client.post("/v1/jobs/flights/clone", json={**body, "labels": {"team": "a"}})
    assert answer.status_code == 201, answer.text
    clone = answer.json()
    assert (answer.headers["ETag"], clone["status"]["state"], clone["labels"]) == ('"1"', "SUBMITTING", {"team": "a"})
    assert (clone["spec"]["parallelism"], clone["spec"]["artifact_id"]) == (4, job["spec"]["artifact_id"])
    restore = clone["status"]["restore"]
    assert (restore["mode"], restore["allow_non_restored_state"]) == ("REWIND", True)
    assert restore["location"].endswith(path)
    [revision] = client.get("/v1/jobs/copy/revisions").json()["revisions"]
    assert (revision["message"], revision["created_by"], revision["number"]) == ("cloned from flights", "admin", 1)
    told = client.get("/v1/jobs/copy/events").json()["events"]
    assert [(each["kind"], each["actor"], each["job_id"]) for each in told] == [
        ("JOB_STARTED", "admin", clone["id"]),
        ("JOB_CREATED", "admin", clone["id"]),
        ("REVISION_CREATED", "admin", clone["id"]),
    ]
    assert told[1]["message"] == "created copy"
