"""Debian's Prometheus scrapes a control plane with a token, and its alerts fire."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import update

from keyscale.api.access.tokens import token_sha256
from keyscale.clock import now_ms
from keyscale.db.models import Attempt
from keyscale.vocabulary import AttemptStage, Role
from tests.integration.api.conftest import add_token
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.api.control_plane.context import Context

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.usefixtures("on_socket"),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus"),
]

ALERT = "KeyscaleCheckpointTooOld"


@contextmanager
def prometheus(directory: Path, target: str, token: str) -> Iterator[httpx.Client]:
    """Runs Prometheus with the alerts of the platform, of which the times are a hundredth; yields its client."""
    rules = (ROOT / "deploy" / "observability" / "alerts.yml").read_text(encoding="utf-8")
    assert ", 600)" in rules
    rules = re.sub(r"for: (\d+)m", "for: 1s", rules).replace(", 600)", ", 6)")
    (directory / "alerts.yml").write_text(rules, encoding="utf-8")
    (directory / "token").write_text(token, encoding="utf-8")
    configuration = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(directory / "alerts.yml")],
        "scrape_configs": [
            {
                "job_name": "keyscale",
                "authorization": {"credentials_file": str(directory / "token")},
                "static_configs": [{"targets": [target]}],
            }
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")  # JSON is YAML
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={directory}/prometheus.yml", f"--web.listen-address={address}"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--storage.tsdb.path={directory}/data"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def values_of(client: httpx.Client, query: str) -> list[float]:
    """Returns the values of a query; none while Prometheus starts."""
    try:
        answer = client.get("/query", params={"query": query})
        return [float(each["value"][1]) for each in answer.json()["data"]["result"]] if answer.is_success else []
    except httpx.TransportError:
        return []


@pytest.fixture
def driver(client: httpx.Client, context: Context, job: dict[str, Any]) -> dict[str, str]:
    """The headers of a driver that runs the job."""
    client.post(f"/v1/jobs/{job['id']}/start")
    with context.sessions.begin() as session:
        session.add(
            Attempt(
                job_id=job["id"],
                number=7,
                stage=AttemptStage.ACTIVE,
                cause="START",
                revision=1,
                parallelism=1,
                created_at_ms=now_ms(),
                reaped=False,
                token_sha256=token_sha256("driver-7"),
            )
        )
    return {"Authorization": "Bearer driver-7"}


def test_an_alert_fires_when_the_checkpoints_of_a_driver_stop(
    client: httpx.Client, context: Context, job: dict[str, Any], driver: dict[str, str], tmp_path: Path
) -> None:
    with context.sessions.begin() as session:
        add_token(session, "of-prometheus", Role.VIEWER)
    firing = f'ALERTS{{alertname="{ALERT}",alertstate="firing",job_name="{job["name"]}"}}'
    target = f"{client.base_url.host}:{client.base_url.port}"
    with prometheus(tmp_path, target, "of-prometheus") as monitoring:

        def beat(*, age_ms: int) -> None:
            """The driver runs, and its last checkpoint is of this age."""
            report = {"state": "RUNNING", "restored_at_ms": 1, "metrics": {"batches": 1, "input_records": 5}}
            assert client.post("/driver/heartbeat", json=report, headers=driver).status_code == 200
            with context.sessions.begin() as session:
                of_job = Attempt.job_id == job["id"]
                session.execute(update(Attempt).where(of_job).values(running_at_ms=now_ms() - age_ms))

        def is_scraped() -> bool:
            beat(age_ms=100)
            return values_of(monitoring, "keyscale_job_up") == [1]

        wait_until(is_scraped)
        assert values_of(monitoring, 'up{job="keyscale"}') == [1]
        assert values_of(monitoring, "keyscale_job_input_records_total") == [5]
        assert values_of(monitoring, "keyscale_job_checkpoint_interval_seconds") == [10]
        assert values_of(monitoring, firing) == []

        def fires() -> bool:
            beat(age_ms=90_000)
            return values_of(monitoring, firing) == [1]

        wait_until(fires)
        rules = monitoring.get("/rules").json()["data"]["groups"][0]["rules"]
        assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []


def test_a_wrong_token_is_not_scraped(client: httpx.Client, tmp_path: Path) -> None:
    target = f"{client.base_url.host}:{client.base_url.port}"
    with prometheus(tmp_path, target, "wrong") as monitoring:
        wait_until(lambda: values_of(monitoring, 'up{job="keyscale"}') == [0])
        assert values_of(monitoring, "keyscale_database_up") == []
