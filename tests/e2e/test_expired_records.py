"""A verification says that the records after a savepoint are gone: a real broker, driver and control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.client.request_paths import job_path
from tests.support.drivers.driver_process import sink_rows
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.servers.kafka_broker import Broker

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(600)]

JOB = ROOT / "tests" / "support" / "jobs" / "kafka_ids_job.py"
SECONDS = 180.0


def test_a_verification_says_that_the_records_after_a_savepoint_have_expired_or_are_of_an_older_topic(
    control_plane: RunningControlPlane, kafka: Broker, tmp_path: Path
) -> None:
    api, topic = control_plane.api, kafka.create_topic()
    body = {
        "name": "ids",
        "spec": {
            "artifact_id": upload_file(api, JOB)["id"],
            "parallelism": 1,
            "parameters": {"servers": kafka.servers, "topic": topic, "output": str(tmp_path / "out")},
        },
    }
    api.post("/v1/jobs", body)

    def begin(**options: Any) -> None:
        api.post(job_path("ids", "start"), options)
        wait_until(lambda: api.get(job_path("ids"))["status"]["state"] == "RUNNING", SECONDS, what="the job to run")

    def deliver(*ids: str) -> None:
        kafka.send(topic, ids)
        wait_until(lambda: set(ids) <= {row["id"] for row in sink_rows(tmp_path / "out")}, SECONDS, what="the output")

    def verified() -> dict[str, Any]:
        api.post(job_path("ids", "checkpoints", str(savepoint), "verify"))
        path = job_path("ids", "checkpoints", str(savepoint), "verification")
        found = wait_until(lambda: api.get(path) if api.get(path)["ended_at_ms"] else None, SECONDS)
        assert found is not None
        return {name: found[name] for name in ("restorable", "sources_checked", "sources_unchecked", "problems")}

    def wait_for(**expected: Any) -> None:
        # The source is asked once a minute.
        wait_until(lambda: verified() == expected, SECONDS, what=f"{expected}", poll=1.0)

    begin()
    deliver(*(f"a{number}" for number in range(100)))
    operation_id = api.post(job_path("ids", "savepoint"))["id"]
    taken = wait_until(lambda: api.get(f"/v1/operations/{operation_id}")["result"], SECONDS, what="the savepoint")
    savepoint = taken["checkpoint_id"]
    fine: dict[str, Any] = {"restorable": True, "sources_checked": True, "sources_unchecked": None, "problems": []}
    wait_for(**fine)

    deliver(*(f"b{number}" for number in range(50)))
    kafka.delete_records(topic, 0, before=120)
    rest = "a job starts from it only if it skips lost records"
    expired = f"source 'source': split {topic}/0 begins at 120, and the checkpoint continues at 100; {rest}"
    wait_for(**{**fine, "restorable": False, "problems": [expired]})

    api.post(job_path("ids", "stop"))
    wait_until(lambda: api.get(job_path("ids"))["status"]["state"] == "STOPPED", SECONDS, what="the job to stop")
    assert verified() == {**fine, "sources_checked": False, "sources_unchecked": "the job does not run"}

    kafka.recreate_topic(topic)
    begin(skip_lost_records=True)
    deliver("c")
    older = (
        f"source 'source': the topic of split {topic}/0 was deleted and created again, and the records before are gone"
    )
    wait_for(**{**fine, "restorable": False, "problems": [f"{older}; {rest}"]})
