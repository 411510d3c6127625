"""Credentials of the store for one job: a real token service gives them out, and a driver's processes use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.sts.models import sts_backends

from keyscale.api.access.tokens import token_sha256
from keyscale.api.launching.driver_command import store_variables
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt
from keyscale.installation import IMPORT_PATH
from keyscale.jobs.runtime.control.channel import HttpControl
from keyscale.jobs.runtime.control.store_access import StoreAccess
from keyscale.jobs.runtime.errors import AttemptOverError
from keyscale.vocabulary import AttemptStage, ClaimMode
from tests.support.servers.s3_server import S3Server, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("on_socket")]

ROLE = "arn:aws:iam::123456789012:role/keyscale-jobs"
USE = """
import sys, boto3
from keyscale.state.objects.opening import open_store
store = open_store(sys.argv[1])
store.create(sys.argv[2], b"by the driver")
print(boto3.session.Session().get_credentials().access_key)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as server:
        yield server


@pytest.fixture
def settings(settings: Settings, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Settings:
    variables = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "KEYSCALE_S3_ENDPOINT": server.endpoint_url,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{server.new_bucket()}/some/prefix"
    given = {**variables, "KEYSCALE_STORE_URL": url, "KEYSCALE_STORE_ROLE": ROLE, "KEYSCALE_HOME": str(settings.home)}
    read = Settings.from_environment(given)
    return replace(
        settings,
        store_url=url,
        store_environment=read.store_environment,
        store_role=read.store_role,
        store_token_endpoint=read.store_token_endpoint,
    )


@pytest.fixture
def attempt(context: Context, job: dict[str, Any]) -> Iterator[Callable[..., HttpControl]]:
    """Stores an attempt of the job, and returns its driver's connection."""
    opened: list[HttpControl] = []

    def store(number: int, base_url: str, **columns: Any) -> HttpControl:
        with context.sessions.begin() as session:
            kept = {"stage": AttemptStage.ACTIVE, "cause": "start", "parallelism": 2, "created_at_ms": 1, **columns}
            token = token_sha256(f"driver-{number}")
            session.add(Attempt(job_id=job["id"], number=number, token_sha256=token, **kept))
        object.__setattr__(context, "settings", replace(context.settings, own_url=base_url))  # which the proof names
        opened.append(HttpControl(base_url, f"{job['id']}:{number}", f"driver-{number}"))
        return opened[-1]

    yield store
    for channel in opened:
        channel.close()


def policy_of(access_key: str) -> str:
    """The policy with which the token service was asked for credentials."""
    [role] = [role for role in sts_backends["123456789012"]["aws"].assumed_roles if role.access_key_id == access_key]
    assert role.role_arn == ROLE
    return str(role.policy)


def allowed(policy: str, action: str, url: str, path: str) -> bool:
    resource = f"arn:aws:s3:::{url.removeprefix('s3://')}/{path}"
    return IAMPolicy(policy).is_action_permitted(action, resource) is PermissionResult.PERMITTED


def test_a_drivers_processes_use_credentials_for_its_own_job(
    client: httpx.Client,
    settings: Settings,
    job: dict[str, Any],
    attempt: Callable[..., HttpControl],
    tmp_path: Path,
) -> None:
    work = tmp_path / "wörk dir"
    work.mkdir()
    variables = store_variables(settings, work, settings.store_url)
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} & variables.keys()
    access = StoreAccess.of(attempt(1, str(client.base_url)), variables)
    assert access is not None
    access.open()
    assert all(file.stat().st_mode & 0o077 == 0 for file in work.iterdir())
    keys = []
    for number in range(2):
        used = subprocess.run(
            [sys.executable, "-c", USE, settings.store_url, f"{job['id']}/chk-{number}"],
            env={"PATH": os.defpath, "PYTHONPATH": str(IMPORT_PATH), "LC_ALL": "C.UTF-8", **variables},
            check=True,
            capture_output=True,
            text=True,
        )
        keys.append(used.stdout.strip())
        access.renew()
    assert len({*keys, "test"}) == 3, "they were renewed"
    policy = policy_of(keys[0])
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert allowed(policy, action, settings.store_url, f"{job['id']}/log/1.json")
        for path in ("another/log/1.json", f"{job['id']}x/log/1.json", "log/1.json"):
            assert not allowed(policy, action, settings.store_url, path), (action, path)
    assert allowed(policy, "s3:GetObject", settings.store_url, "control-planes/here.json")
    assert not allowed(policy, "s3:PutObject", settings.store_url, "control-planes/here.json")
    record = f"job-records/{job['id']}/00000000000000000001.json"  # a job could give itself secrets with it
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert not allowed(policy, action, settings.store_url, record)
    assert not allowed(policy, "s3:DeleteBucket", settings.store_url, "")
    [listing] = [each for each in json.loads(policy)["Statement"] if "s3:ListBucket" in each["Action"]]
    assert listing["Condition"] == {
        "StringLikeIfExists": {"s3:prefix": [f"some/prefix/{job['id']}/*", "some/prefix/control-planes/*"]}
    }


def test_they_reach_the_snapshots_of_other_jobs_that_the_job_restores_from(
    client: httpx.Client, settings: Settings, attempt: Callable[..., HttpControl]
) -> None:
    read, taken = (f"{settings.store_url}/{path}/manifest.json" for path in ("other/chk-3", "third/savepoints/mine"))
    claimed = {"restore_from": taken, "claim_mode": ClaimMode.CLAIM, "stage": AttemptStage.ENDED}
    attempt(1, str(client.base_url), **claimed)
    policy = policy_of(attempt(2, str(client.base_url), restore_from=read).store_credentials().access_key_id)
    may = {
        (action, path): allowed(policy, f"s3:{action}Object", settings.store_url, path)
        for action in ("Get", "Put", "Delete")
        for path in ("other/shared/a", "third/savepoints/mine/claim.json", "third/shared/a", "fourth/shared/a")
    }
    assert {key for key, is_allowed in may.items() if is_allowed} == {
        ("Get", "other/shared/a"),
        ("Get", "third/shared/a"),
        *((action, "third/savepoints/mine/claim.json") for action in ("Get", "Put", "Delete")),
    }


def test_an_attempt_that_is_over_gets_none(client: httpx.Client, attempt: Callable[..., HttpControl]) -> None:
    with pytest.raises(AttemptOverError):
        attempt(1, str(client.base_url), stage=AttemptStage.ENDED).store_credentials()


def test_a_token_service_that_refuses_or_is_away_is_a_store_that_is_unavailable(
    client: httpx.Client, context: Context, attempt: Callable[..., HttpControl]
) -> None:
    attempt(1, str(client.base_url))
    headers, settings = {"Authorization": "Bearer driver-1"}, context.settings
    for change in ({"store_role": "no-role"}, {"store_token_endpoint": "http://127.0.0.1:9"}):
        object.__setattr__(context, "settings", replace(settings, **change))
        answer = client.get("/driver/store-credentials", headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE"), answer.text
    object.__setattr__(context, "settings", replace(settings, store_role=None))
    answer = client.get("/driver/store-credentials", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "STORE_ROLE_MISSING")
