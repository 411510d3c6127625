"""The README's job from its upload to its deletion: by plain HTTP requests, and by the Python client."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import pytest

from keyscale.api.jobs.schemas.restore import RestoreSource
from keyscale.client import Keyscale, RefusedError
from keyscale.deploy.demo.feeder import write_atomically
from keyscale.jobs.protocol.specification import CheckpointSettings, JobSpec
from keyscale.vocabulary import Fate, OperationKind, OperationStatus
from tests.e2e.conftest import SETTINGS
from tests.support.control_plane.readme_job import block
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.drivers.driver_process import sink_rows
from tests.support.repository import DOCS
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from keyscale.api.operations.schemas.change_plan import PlanAnswer
    from keyscale.api.operations.schemas.operation import OperationAnswer
    from keyscale.client.connection import Connection
    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

SECONDS = 300.0
INTERVAL_MS = 2000
MESSAGE = "remember the page before"
EVENTS = {"JOB_CREATED", "JOB_STARTED", "JOB_STOPPED", "RESCALE_COMPLETED", "UPGRADE_COMPLETED", "ROLLBACK_COMPLETED"}
FATES = {"visits": Fate.KEPT, "last": Fate.NEW}
"""The fates of the states of the README's program in the tutorial's second version."""


class Visits:
    """The input and the output of the README's job, and the programs of its two versions.

    Args:
        place: A directory that the users of jobs may enter.
    """

    def __init__(self, place: Path) -> None:
        self._directory = place / "visits"
        (self._directory / "in").mkdir(parents=True)
        self._directory.chmod(0o777)
        self.parameters = {"input": str(self._directory / "in"), "output": str(self._directory / "out")}
        self.program, self.next_program = place / "visits.py", place / "visits2.py"
        self.program.write_text(block("python"))
        self.next_program.write_text(block("python", DOCS / "guide" / "tutorial.md"))
        self._clicks = 0

    def click(self) -> None:
        self._clicks += 1
        write_atomically(self._directory / "in", f"{self._clicks}.json", [{"user": "ada", "page": "/"}])

    def wait_for_all(self, **last: str) -> None:
        """Waits for a row of each click, and compares all rows; the last row may have further columns."""
        expected: list[dict[str, Any]] = [{"user": "ada", "visits": visits + 1} for visits in range(self._clicks)]
        expected[-1] |= last
        wait_until(lambda: self._rows() == expected, SECONDS, what=f"{expected}", poll=0.2)

    def _rows(self) -> list[dict[str, Any]]:
        return sink_rows(self._directory / "out")


class Story(Protocol):
    """The chapters of the README's story; each one returns when what it asks for has happened."""

    def check_create_plan_and_start(self) -> None: ...
    def watch_and_take_checkpoints(self) -> None: ...
    def rescale(self) -> None: ...
    def stop_after_a_savepoint(self) -> None: ...
    def start_from_the_savepoint(self) -> None: ...
    def upgrade(self) -> None: ...
    def roll_back(self) -> None: ...
    def read_logs_and_events(self) -> None: ...
    def delete(self) -> None: ...


class HttpStory:
    """The requests that the guide shows by `curl`."""

    def __init__(self, http: httpx.Client, visits: Visits) -> None:
        self._http = http
        self._visits = visits
        self._job = "/v1/jobs/http"
        self._before = 0

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        answer = self._http.request(method, path, json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def _get(self, part: str = "") -> Any:
        return self._ask("GET", f"{self._job}{part}")

    def _post(self, part: str, body: dict[str, Any] | None = None) -> Any:
        return self._ask("POST", f"{self._job}/{part}", body)

    def _completed(self, operation: Any) -> Any:
        def ended() -> Any:
            shown = self._ask("GET", f"/v1/operations/{operation['id']}")
            return shown if OperationStatus(shown["status"]).has_ended else None

        shown = wait_until(ended, SECONDS, what=f"the end of {operation}", poll=0.5)
        assert shown["status"] == "COMPLETED", shown
        return shown

    def _upload(self, file: Path) -> str:
        answer = self._http.post("/v1/artifacts", files={"file": (file.name, file.read_bytes())})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def check_create_plan_and_start(self) -> None:
        artifact = self._upload(self._visits.program)
        checked = self._ask("POST", f"/v1/artifacts/{artifact}/check", {"parameters": self._visits.parameters})
        assert (checked["valid"], [each["uid"] for each in checked["operators"]]) == (True, ["visits-by-user"]), checked
        spec = {"artifact_id": artifact, "parallelism": 2}
        settings = {"parameters": self._visits.parameters, "checkpoints": {"interval_ms": INTERVAL_MS}}
        self._ask("POST", "/v1/jobs", {"name": "http", "spec": {**spec, **settings}})
        planned = self._ask("PATCH", self._job, {"spec": {"parallelism": 4}, "dry_run": True})
        assert (planned["id"], planned["plan"]["compatible"], planned["plan"]["to_parallelism"]) == (None, True, 4)
        self._completed(self._post("start"))
        assert [job["status"]["state"] for job in self._ask("GET", "/v1/jobs")["jobs"]] == ["RUNNING"]

    def watch_and_take_checkpoints(self) -> None:
        def latest() -> Any:
            return self._get("/checkpoints?limit=20")["latest"]["completed"]

        periodic = wait_until(latest, SECONDS, what="a checkpoint", poll=0.5)["id"]
        taken = self._completed(self._post("checkpoint"))["result"]["checkpoint_id"]
        assert taken > periodic
        assert self._get(f"/checkpoints/{taken}")["status"] == "COMPLETED"

    def rescale(self) -> None:
        plan = self._post("rescale", {"parallelism": 4, "dry_run": True})["plan"]
        assert (plan["from_parallelism"], plan["to_parallelism"]) == (2, 4)
        operation = self._post("rescale", {"parallelism": 4})
        with self._http.stream("GET", f"/v1/operations/{operation['id']}/stream") as stream:
            *_, last = (line for line in stream.iter_lines() if line.startswith("data:"))
        assert json.loads(last.removeprefix("data:"))["status"] == "COMPLETED", last
        (rescale,) = self._get("/operations?kind=RESCALE")["operations"]
        assert (rescale["id"], rescale["downtime_ms"] > 0) == (operation["id"], True)
        assert self._get()["spec"]["parallelism"] == 4

    def stop_after_a_savepoint(self) -> None:
        self._completed(self._post("savepoint", {"id": "mine"}))
        assert self._get("/savepoints/mine")["owner"] == "USER"
        assert self._completed(self._post("stop"))["result"]["location"]
        assert self._get()["status"]["state"] == "STOPPED"

    def start_from_the_savepoint(self) -> None:
        self._completed(self._post("start", {"restore_from": {"savepoint_id": "mine"}}))

    def upgrade(self) -> None:
        change = {"spec": {"artifact_id": self._upload(self._visits.next_program)}}
        (operator,) = self._ask("PATCH", self._job, {**change, "dry_run": True})["plan"]["operators"]
        assert FATES.items() <= {state["name"]: state["fate"] for state in operator["states"]}.items()
        shown = self._http.get(self._job)
        self._before = shown.json()["revision"]
        seen = {"If-Match": shown.headers["ETag"]}
        self._completed(self._ask("PATCH", self._job, {**change, "message": MESSAGE}, **seen))
        assert self._get("/revisions")["revisions"][0]["message"] == MESSAGE
        differences = self._get(f"/revisions/{self._before}/diff?to={self._before + 1}")["differences"]
        assert "artifact_id" in [each["path"] for each in differences]

    def roll_back(self) -> None:
        self._completed(self._post("rollback", {"revision": self._before}))

    def read_logs_and_events(self) -> None:
        assert "all state is restored" in self._get("/logs?tail_bytes=1000000")["text"]
        assert self._get("/exceptions")["exceptions"] == []
        assert {event["kind"] for event in self._get("/events?limit=1000")["events"]} >= EVENTS

    def delete(self) -> None:
        query = f"/v1/events?job={self._get()['id']}&kind=JOB_OBJECTS_DELETED"
        self._completed(self._post("cancel"))
        self._ask("DELETE", self._job)
        assert self._http.get(self._job).json()["code"] == "JOB_NOT_FOUND"
        wait_until(lambda: self._ask("GET", query)["events"], SECONDS, what="the deletion of the objects", poll=0.5)


class ClientStory:
    """The calls of `keyscale.client`."""

    def __init__(self, client: Keyscale, visits: Visits) -> None:
        self._client = client
        self._visits = visits
        self._before = 0

    def _completed(self, operation: OperationAnswer) -> OperationAnswer:
        assert operation.id is not None
        return self._client.operations.wait(operation.id, timeout_s=SECONDS)

    def check_create_plan_and_start(self) -> None:
        artifact = self._client.artifacts.upload(self._visits.program)
        checked = self._client.artifacts.check(artifact.id, parameters=self._visits.parameters)
        assert (checked.valid, [each.uid for each in checked.operators]) == (True, ["visits-by-user"]), checked
        spec = JobSpec(
            artifact_id=artifact.id,
            parallelism=2,
            parameters=self._visits.parameters,
            checkpoints=CheckpointSettings(interval_ms=INTERVAL_MS),
        )
        job = self._client.jobs.create(name="client", spec=spec)
        plan = plan_of(self._client.jobs.update("client", job.revision, spec={"parallelism": 4}, dry_run=True))
        assert (plan.compatible, plan.to_parallelism) == (True, 4)
        self._completed(self._client.jobs.start("client"))
        assert [job.status.state for job in self._client.jobs.list()] == ["RUNNING"]

    def watch_and_take_checkpoints(self) -> None:
        statistics = (self._client.checkpoints.statistics("client") for _ in self._client.jobs.stream("client"))
        periodic = next(latest.id for each in statistics if (latest := each.latest.completed))
        result = self._completed(self._client.jobs.checkpoint("client")).result
        assert result is not None
        assert result.checkpoint_id is not None
        assert result.checkpoint_id > periodic
        assert self._client.checkpoints.get("client", result.checkpoint_id).status == "COMPLETED"

    def rescale(self) -> None:
        plan = plan_of(self._client.jobs.rescale("client", parallelism=4, dry_run=True))
        assert (plan.from_parallelism, plan.to_parallelism) == (2, 4)
        operation = self._client.jobs.rescale("client", parallelism=4)
        assert operation.id is not None
        *_, last = self._client.operations.stream(operation.id)
        assert last.status == "COMPLETED", last
        (rescale,) = self._client.operations.list("client", kind=[OperationKind.RESCALE])
        assert (rescale.id, (rescale.downtime_ms or 0) > 0) == (operation.id, True)
        assert self._client.jobs.get("client").spec.parallelism == 4

    def stop_after_a_savepoint(self) -> None:
        self._completed(self._client.jobs.savepoint("client", id="ours"))
        assert self._client.savepoints.get("client", "ours").owner == "USER"
        result = self._completed(self._client.jobs.stop("client")).result
        assert result is not None
        assert result.location
        assert self._client.jobs.get("client").status.state == "STOPPED"

    def start_from_the_savepoint(self) -> None:
        self._completed(self._client.jobs.start("client", restore_from=RestoreSource(savepoint_id="ours")))

    def upgrade(self) -> None:
        spec = {"artifact_id": self._client.artifacts.upload(self._visits.next_program).id}
        self._before = self._client.jobs.get("client").revision
        (operator,) = plan_of(self._client.jobs.update("client", self._before, spec=spec, dry_run=True)).operators
        assert FATES.items() <= {state.name: state.fate for state in operator.states}.items()
        self._completed(self._client.jobs.update("client", self._before, spec=spec, message=MESSAGE))
        assert next(self._client.revisions.list("client")).message == MESSAGE
        differences = self._client.revisions.diff("client", self._before, self._before + 1).differences
        assert "artifact_id" in [each.path for each in differences]

    def roll_back(self) -> None:
        self._completed(self._client.jobs.rollback("client", revision=self._before))

    def read_logs_and_events(self) -> None:
        assert "all state is restored" in self._client.logs.get("client", tail_bytes=1_000_000).text
        assert list(self._client.jobs.exceptions("client")) == []
        assert {event.kind for event in self._client.events.list(job="client")} >= EVENTS

    def delete(self) -> None:
        job_id = self._client.jobs.get("client").id
        self._completed(self._client.jobs.cancel("client"))
        self._client.jobs.delete("client")
        with pytest.raises(RefusedError) as refused:
            self._client.jobs.get("client")
        assert refused.value.code == "JOB_NOT_FOUND"
        events = self._client.events
        wait_until(
            lambda: list(events.list(job=job_id, kind=["JOB_OBJECTS_DELETED"])),
            SECONDS,
            what="the deletion of the objects",
            poll=0.5,
        )


def plan_of(dry_run: OperationAnswer) -> PlanAnswer:
    assert dry_run.id is None
    assert dry_run.plan is not None
    return dry_run.plan


@contextmanager
def by_http(connection: Connection, visits: Visits) -> Iterator[Story]:
    authorization = {"Authorization": f"Bearer {connection.token}"}
    with httpx.Client(base_url=connection.url, headers=authorization, timeout=SECONDS) as http:
        yield HttpStory(http, visits)


@contextmanager
def by_client(connection: Connection, visits: Visits) -> Iterator[Story]:
    with Keyscale(connection=connection) as client:
        yield ClientStory(client, visits)


@pytest.fixture(scope="module")
def control_plane() -> Iterator[RunningControlPlane]:
    with running_control_plane(SETTINGS) as running:
        yield running


@pytest.fixture
def visits() -> Iterator[Visits]:
    with tempfile.TemporaryDirectory(prefix="keyscale-visits-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        yield Visits(Path(directory))


@pytest.mark.parametrize("tell", [by_http, by_client])
def test_the_job_counts_exactly_through_its_whole_life(
    control_plane: RunningControlPlane,
    visits: Visits,
    tell: Callable[[Connection, Visits], AbstractContextManager[Story]],
) -> None:
    with tell(control_plane.process.connection, visits) as story:
        story.check_create_plan_and_start()
        visits.click()
        visits.wait_for_all()
        story.watch_and_take_checkpoints()
        story.rescale()
        visits.click()
        visits.wait_for_all()
        story.stop_after_a_savepoint()
        visits.click()
        story.start_from_the_savepoint()
        visits.wait_for_all()
        story.upgrade()
        visits.click()
        visits.wait_for_all(before="nothing")
        story.roll_back()
        visits.click()
        visits.wait_for_all()
        story.read_logs_and_events()
        story.delete()
