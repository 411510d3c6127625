"""A start names the checkpoint or savepoint that it restores: it is found and checked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.db.job_scope import JobScope
from keyscale.db.models import Checkpoint, Job
from keyscale.identifiers import JobId
from keyscale.state.documents.claim import take_claim
from keyscale.state.layout import location_of, split_location
from keyscale.state.objects.opening import open_store
from keyscale.state_io import transform
from keyscale.vocabulary import CheckpointStatus, Role
from tests.integration.api.conftest import add_token
from tests.support.control_plane.bodies import with_spec
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.state.documents.manifest import Manifest

pytestmark = pytest.mark.real


class Snapshots:
    """The snapshots of the job `flights`, in store and database: 1 and 2 are checkpoints, 3 is the savepoint `s`."""

    def __init__(self, context: Context, job: dict[str, Any], local: Path) -> None:
        self.context = context
        self.state = StateJob(open_store(context.settings.store_url), local, JobId(job["id"]))
        self.state.start(2)
        self.manifests: dict[int, Manifest] = {}
        for number, savepoint_id in ((1, None), (2, None), (3, "s")):
            self.state.run_batch({number: 1})
            self.manifests[number], _ = self.state.checkpoint(savepoint_id)
        with context.sessions.begin() as session:
            for number, manifest in self.manifests.items():
                session.add(
                    Checkpoint(
                        job_id=job["id"],
                        checkpoint_id=number,
                        attempt=1,
                        status=CheckpointStatus.SUBSUMED if number == 1 else CheckpointStatus.COMPLETED,
                        is_savepoint=manifest.savepoint_id is not None,
                        savepoint_id=manifest.savepoint_id,
                        trigger_timestamp=number * 1000,
                        latest_ack_timestamp=number * 1000,
                        end_to_end_duration=1,
                        checkpointed_size=1,
                        state_size=1,
                        processed_records=1,
                        external_path=self.location(number),
                        num_subtasks=2,
                        num_acknowledged_subtasks=2,
                    )
                )

    def location(self, number: int) -> str:
        return location_of(self.context.settings.store_url, self.manifests[number].path)


@pytest.fixture
def snapshots(context: Context, job: dict[str, Any], tmp_path: Path) -> Snapshots:
    return Snapshots(context, job, tmp_path / "local")


def start(client: httpx.Client, job: str = "flights", **body: Any) -> Any:
    answer = client.post(f"/v1/jobs/{job}/start", json=body).json()
    return client.get(f"/v1/jobs/{job}").json() if answer.get("status") == "IN_PROGRESS" else answer


def create(client: httpx.Client, job: dict[str, Any], name: str, **body: Any) -> Any:
    full = with_spec(name=name, artifact_id=job["spec"]["artifact_id"], **body)
    return client.post("/v1/jobs", json=full).json()


@pytest.mark.parametrize(
    ("source", "number", "mode"),
    [
        ({"checkpoint_id": 2}, 2, "REWIND"),
        ({"checkpoint_id": 3}, 3, "REWIND"),
        ({"savepoint_id": "s"}, 3, "REWIND"),
        ({"job": "flights", "savepoint_id": "s"}, 3, "REWIND"),
        ({"before_ms": 3000}, 2, "REWIND"),
        ({"latest": True}, 3, "CONTINUE"),
    ],
)
def test_a_start_goes_back_to_exactly_the_snapshot_that_it_names(
    client: httpx.Client, snapshots: Snapshots, source: dict[str, Any], number: int, mode: str
) -> None:
    started = start(client, restore_from=source, allow_non_restored_state=True)
    assert started["status"]["restore"] == {
        "mode": mode,
        "location": snapshots.location(number),
        "claim_mode": "NO_CLAIM",
        "allow_non_restored_state": True,
    }


def test_a_start_takes_a_location_a_claim_and_another_parallelism(client: httpx.Client, snapshots: Snapshots) -> None:
    location = snapshots.location(3)
    started = start(client, restore_from={"location": location}, claim_mode="CLAIM", parallelism=5)
    assert (started["status"]["restore"]["location"], started["status"]["restore"]["claim_mode"]) == (location, "CLAIM")
    assert (started["status"]["state"], started["revision"], started["spec"]["parallelism"]) == ("SUBMITTING", 2, 5)
    assert start(client, parallelism=6)["code"] == "JOB_STATUS_CONFLICT"
    assert client.get("/v1/jobs/flights").json()["spec"]["parallelism"] == 5


def test_a_start_takes_the_directory_of_a_manifest(client: httpx.Client, snapshots: Snapshots) -> None:
    location = snapshots.location(3)
    started = start(client, restore_from={"location": location.removesuffix("manifest.json")})
    assert started["status"]["restore"]["location"] == location


@pytest.mark.parametrize(
    ("body", "code", "detail"),
    [
        ({"restore_from": {"checkpoint_id": 1}}, "RESTORE_SOURCE_INVALID", "is SUBSUMED"),
        ({"restore_from": {"checkpoint_id": 9}}, "RESTORE_SOURCE_INVALID", "has no checkpoint 9"),
        ({"restore_from": {"savepoint_id": "t"}}, "RESTORE_SOURCE_INVALID", "no manifest can be read"),
        ({"restore_from": {"savepoint_id": "é" * 200}}, "RESTORE_SOURCE_INVALID", "no such savepoint"),
        ({"restore_from": {"before_ms": 2000}}, "RESTORE_SOURCE_INVALID", "from before 2000"),
        ({"restore_from": {"location": "s"}}, "RESTORE_SOURCE_INVALID", "a location is"),
        ({"restore_from": {"location": "s3://b/j/chk-1/manifest.json"}}, "RESTORE_SOURCE_INVALID", "job's store"),
        ({"restore_from": {"job": "nobody", "latest": True}}, "JOB_NOT_FOUND", "no job"),
        ({"restore_from": {}}, "REQUEST_INVALID", ""),
        ({"restore_from": {"latest": True, "checkpoint_id": 2}}, "REQUEST_INVALID", ""),
        ({"claim_mode": "CLAIM"}, "REQUEST_INVALID", "needs restore_from"),
        ({"parallelism": 17}, "PARALLELISM_OUT_OF_RANGE", "17"),
    ],
)
@pytest.mark.usefixtures("snapshots")
def test_what_a_job_cannot_start_from_is_refused_and_the_job_is_as_it_was(
    client: httpx.Client, job: dict[str, Any], body: dict[str, Any], code: str, detail: str
) -> None:
    before = client.get("/v1/jobs/flights").json()
    refused = start(client, **body)
    assert refused["code"] == code
    assert detail in refused["detail"]
    assert client.get("/v1/jobs/flights").json() == before
    assert len(client.get(f"/v1/jobs/{job['id']}/revisions").json()["revisions"]) == 1


@pytest.mark.parametrize(
    "path", ["../chk-1/manifest.json", "{id}/chk-01/manifest.json", "{id}/savepoints/../manifest.json"]
)
@pytest.mark.usefixtures("snapshots")
def test_a_location_that_no_manifest_can_have_is_not_read(
    client: httpx.Client, context: Context, job: dict[str, Any], path: str
) -> None:
    location = f"{context.settings.store_url}/{path.format(id=job['id'])}"
    refused = start(client, restore_from={"location": location})
    assert (refused["code"], "to a job's manifest" in refused["detail"]) == ("RESTORE_SOURCE_INVALID", True)


def test_a_damaged_snapshot_and_one_that_another_job_has_claimed_are_refused(
    client: httpx.Client, snapshots: Snapshots
) -> None:
    take_claim(snapshots.state.store, snapshots.manifests[3], JobId("another"))
    refused = start(client, restore_from={"savepoint_id": "s"})
    assert (refused["code"], "job another has claimed it" in refused["detail"]) == ("RESTORE_SOURCE_INVALID", True)
    snapshots.state.store.delete([next(iter(snapshots.manifests[2].files())).path])
    refused = start(client, restore_from={"checkpoint_id": 2})
    assert (refused["code"], "missing, such as" in refused["detail"]) == ("RESTORE_SOURCE_INVALID", True)


def test_a_new_job_starts_from_another_ones_snapshot_with_its_key_groups(
    client: httpx.Client, job: dict[str, Any], snapshots: Snapshots
) -> None:
    fork = create(client, job, "fork", restore_from={"job": "flights", "latest": True})
    assert (fork["spec"]["max_parallelism"], fork["status"]["state"]) == (16, "CREATED")
    assert (fork["status"]["restore"]["mode"], fork["status"]["restore"]["location"]) == (
        "REWIND",
        snapshots.location(3),
    )
    assert start(client, "fork")["status"]["restore"] == fork["status"]["restore"], (
        "the restore is pending until an attempt has carried it out"
    )
    named = {"job": "flights", "savepoint_id": "s"}
    for body, detail in (
        ({"restore_from": named, "max_parallelism": 32}, "its max parallelism is 16, the job's 32"),
        ({"restore_from": named, "hash_id": "java"}, "its hash is spark, the job's java"),
        ({"restore_from": {"job": "flights", "checkpoint_id": 2}, "claim_mode": "CLAIM"}, "cannot be claimed"),
    ):
        refused = create(client, job, "other", **body)
        assert (refused["code"], detail in refused["detail"]) == ("RESTORE_SOURCE_INVALID", True), refused
    refused = create(client, job, "other", restore_from={"latest": True})
    assert (refused["code"], "name the `job`" in refused["detail"]) == ("REQUEST_INVALID", True)
    assert create(client, job, "other", parallelism=17, restore_from=named)["code"] == "PARALLELISM_OUT_OF_RANGE"
    assert client.get("/v1/jobs/other").json()["code"] == "JOB_NOT_FOUND"


@pytest.mark.parametrize("how", ["update", "start", "rollback"])
def test_permission_to_drop_state_keeps_the_snapshot_that_the_job_is_to_start_from(
    client: httpx.Client, job: dict[str, Any], snapshots: Snapshots, how: str
) -> None:
    fork = create(client, job, "fork", restore_from={"job": "flights", "savepoint_id": "s"})
    allowed = {"allow_non_restored_state": True}
    if how == "start":
        answer = start(client, "fork", **allowed)
    elif how == "update":
        client.patch("/v1/jobs/fork", json={"spec": {"parallelism": 3}, **allowed}, headers={"If-Match": "*"})
        answer = client.get("/v1/jobs/fork").json()
    else:
        body = {"revision": 1, "state": "CURRENT", "plan_first": False, **allowed}
        client.post("/v1/jobs/fork/rollback", json=body)
        answer = client.get("/v1/jobs/fork").json()
    assert answer["status"]["restore"] == {**fork["status"]["restore"], **allowed}
    assert answer["status"]["restore"]["location"] == snapshots.location(3)


def test_a_user_reaches_the_snapshots_of_jobs_in_scope_only(
    client: httpx.Client, context: Context, upload: Callable[..., Any], snapshots: Snapshots
) -> None:
    body = {"name": "own", "spec": {"artifact_id": upload(b"print(3)\n").json()["id"], "max_parallelism": 16}}
    assert client.post("/v1/jobs", json=body).status_code == 201
    with context.sessions.begin() as session:
        add_token(session, "narrow", Role.OPERATOR, JobScope(jobs=frozenset({"own"})))
    client.headers["Authorization"] = "Bearer narrow"
    by_name = start(client, "own", restore_from={"job": "flights", "savepoint_id": "s"})
    by_location = start(client, "own", restore_from={"location": snapshots.location(3)})
    absent = start(client, "own", restore_from={"location": snapshots.location(3).replace("/s/", "/t/")})
    assert (by_name["code"], by_location["code"]) == ("JOB_NOT_FOUND", "RESTORE_SOURCE_INVALID")
    assert by_location["detail"].replace("/s/", "/t/") == absent["detail"], "nothing tells whether it is there"


def test_a_clone_has_the_specification_and_the_latest_state_of_a_job_that_is_not_touched(
    client: httpx.Client, job: dict[str, Any], snapshots: Snapshots
) -> None:
    with snapshots.context.sessions.begin() as session:
        session.get_one(Job, job["id"]).labels = {"team": "b"}
    before = client.get("/v1/jobs/flights").json()
    spec = {"parallelism": 4, "parameters": {"output": "/out"}}
    body = {"name": "copy", "spec": spec, "labels": {"team": "a"}, "start": True}
    answer = client.post("/v1/jobs/flights/clone", json=body)
    clone = answer.json()
    assert (answer.status_code, answer.headers["ETag"], clone["status"]["state"]) == (201, '"1"', "SUBMITTING")
    assert clone["labels"] == {"team": "a"}
    assert {**clone["spec"], "parallelism": 2, "parameters": {}} == job["spec"]
    assert (clone["spec"]["parallelism"], clone["spec"]["parameters"]) == (4, {"output": "/out"})
    assert (clone["status"]["restore"]["mode"], clone["status"]["restore"]["location"]) == (
        "REWIND",
        snapshots.location(3),
    )
    assert client.get("/v1/jobs/flights").json() == before
    [revision] = client.get("/v1/jobs/copy/revisions").json()["revisions"]
    assert revision["message"] == "cloned from flights"
    body = {"name": "older", "restore_from": {"checkpoint_id": 2}, "message": "as of yesterday"}
    older = client.post("/v1/jobs/flights/clone", json=body).json()
    assert (older["status"]["state"], older["status"]["restore"]["location"]) == ("CREATED", snapshots.location(2))
    assert older["labels"] == before["labels"] == {"team": "b"}
    [revision] = client.get("/v1/jobs/older/revisions").json()["revisions"]
    assert revision["message"] == "as of yesterday"
    body = {"name": "third", "restore_from": {"job": "older", "latest": True}}
    refused = client.post("/v1/jobs/flights/clone", json=body).json()
    assert refused["detail"] == "job older keeps no completed checkpoint or savepoint"


@pytest.mark.usefixtures("snapshots")
def test_a_clone_does_not_take_the_name_of_another_job(client: httpx.Client) -> None:
    refused = client.post("/v1/jobs/flights/clone", json={"name": "flights"}).json()
    assert refused["code"] == "JOB_NAME_TAKEN"


def test_a_clone_has_the_max_parallelism_of_a_changed_savepoint_and_all_state_of_the_job(
    client: httpx.Client, context: Context, snapshots: Snapshots, tmp_path: Path
) -> None:
    refused = client.patch("/v1/jobs/flights", json={"spec": {"max_parallelism": 64}}, headers={"If-Match": "*"}).json()
    assert (refused["code"], "state transform" in refused["advice"]) == ("SETTING_FIXED", True)
    target = snapshots.location(3).replace("/s/", "/wider/")
    wider = transform(snapshots.location(3), target.removesuffix("/manifest.json"), max_parallelism=64)
    refused = start(client, restore_from={"location": wider})
    assert (refused["code"], "is 64, the job's 16" in refused["detail"]) == ("RESTORE_SOURCE_INVALID", True)
    assert "jobs clone" in refused["advice"]
    body = {"name": "wide", "restore_from": {"location": wider}, "spec": {"parallelism": 17}}
    clone = client.post("/v1/jobs/flights/clone", json=body).json()
    assert (clone["spec"]["max_parallelism"], clone["spec"]["parallelism"]) == (64, 17)
    assert clone["status"]["restore"]["location"] == wider
    assert client.get("/v1/jobs/flights").json()["spec"]["max_parallelism"] == 16
    state = StateJob(open_store(context.settings.store_url), tmp_path / "wide", JobId(clone["id"]), max_parallelism=64)
    state.start(17, split_location(wider)[1], rewinds=True)
    assert state.dump() == snapshots.state.dump() == {1: 1, 2: 1, 3: 1}


@pytest.mark.usefixtures("job")
def test_a_job_without_state_is_not_cloned(client: httpx.Client) -> None:
    refused = client.post("/v1/jobs/flights/clone", json={"name": "copy"}).json()
    assert (refused["code"], "keeps no completed" in refused["detail"]) == ("RESTORE_SOURCE_INVALID", True)
    assert client.get("/v1/jobs/copy").json()["code"] == "JOB_NOT_FOUND"
