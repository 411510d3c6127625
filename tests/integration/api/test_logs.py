"""The log of a driver is read in parts, and from whichever replica has started the driver."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from keyscale.api.access.forwarded_requests import SCHEME
from keyscale.api.lifecycle import steps
from keyscale.api.lifecycle.apply import apply
from keyscale.api.lifecycle.change_phases import CANCELLED
from keyscale.api.lifecycle.job_transaction import JobTransaction
from keyscale.api.lifecycle.steps import Cause
from keyscale.api.maintenance.announcer import replica_id
from keyscale.api.web.app import create_app, make_context
from keyscale.db.job_scope import JobScope
from keyscale.db.repositories import jobs, replicas
from keyscale.vocabulary import JobStatus, Role
from tests.integration.api.conftest import TOKEN, add_token, new_listener, served
from tests.support.servers.stand_in_server import stand_in_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.either_database

LOG = "first\nthe key is of-the-orders\nthird\n"


def write_log(home: Path, job_id: str, number: int = 1) -> None:
    directory = home / "runs" / job_id / str(number)
    directory.mkdir(parents=True)
    (directory / "driver.log").write_text(LOG)


@contextmanager
def locked(context: Context, job_id: str) -> Iterator[JobTransaction]:
    """A transaction on the locked job."""
    with context.sessions.begin() as session:
        found = jobs.lock(session, job_id)
        assert found is not None
        yield JobTransaction(session, found)


def launch(context: Context, job_id: str, place: str) -> None:
    """Stores an attempt that was launched somewhere."""
    with locked(context, job_id) as transaction:
        attempt = transaction.create_attempt(transaction.job.revision, Cause.START)
        attempt.launched_on, attempt.launched_at_ms = place, 1


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, store_environment={"AWS_SECRET_ACCESS_KEY": "of-the-store"})


@pytest.fixture
def secretive(client: httpx.Client, job: dict[str, Any]) -> str:
    """A job with a secret, which its log holds."""
    body = {
        "name": "secretive",
        "labels": {"team": "a"},
        "spec": {"artifact_id": job["spec"]["artifact_id"], "secrets": ["ORDERS"]},
    }
    return str(client.post("/v1/jobs", json=body).json()["id"])


def test_a_log_is_followed_by_offsets_and_searched(
    client: httpx.Client, context: Context, settings: Settings, secretive: str
) -> None:
    write_log(settings.home, secretive)
    launch(context, secretive, context.launcher.place)
    end = client.get("/v1/jobs/secretive/logs").json()
    assert (end["text"], end["offset"], end["next_offset"]) == (LOG.replace("of-the-orders", "*****"), 0, len(LOG))
    first = client.get("/v1/jobs/secretive/logs", params={"offset": 0, "limit_bytes": 10}).json()
    assert (first["text"], first["next_offset"]) == ("first\n", 6)
    with (settings.home / "runs" / secretive / "1" / "driver.log").open("a") as log:
        log.write("fourth of-the-store\nunfini")
    more = client.get("/v1/jobs/secretive/logs", params={"offset": end["next_offset"]}).json()
    assert more["text"] == "fourth *****\n", "a line that is being written is left for later"
    found = client.get("/v1/jobs/secretive/logs", params={"search": "KEY"}).json()
    assert found["matches"] == [{"offset": 6, "text": "the key is *****"}]
    assert client.get("/v1/jobs/secretive/logs", params={"search": "of-the"}).json()["matches"] == []
    assert client.get("/v1/jobs/secretive/logs", params={"search": ""}).status_code == 422


def test_without_an_attempt_the_log_is_of_the_driver_that_runs_the_job_or_ran_it_last(
    client: httpx.Client, context: Context, settings: Settings, job: dict[str, Any]
) -> None:
    def take(step: steps.Step) -> None:
        with locked(context, job["id"]) as transaction:
            apply(step, transaction)

    def rescale() -> None:
        with locked(context, job["id"]) as transaction:
            transaction.job.status = JobStatus.RUNNING
        assert client.post("/v1/jobs/flights/rescale", json={"parallelism": 3}).status_code == 202
        take(steps.CreateAttempt(2, Cause.RESCALE, standby=True))

    def shown() -> int:
        return int(client.get("/v1/jobs/flights/logs").json()["attempt"])

    for number in (1, 2, 3, 4):
        write_log(settings.home, job["id"], number)
    failure = {"code": "DRIVER_LOST", "message": "gone"}
    take(steps.CreateAttempt(1, Cause.START))
    rescale()
    assert shown() == 1, "the new driver only warms up"
    take(steps.AbandonChange({"code": CANCELLED, "message": "cancelled"}))
    assert shown() == 1, "the change was cancelled"
    take(steps.EndAttempt(1))
    assert shown() == 1, "nothing runs"
    take(steps.CreateAttempt(1, Cause.RECOVER))
    take(steps.EndAttempt(3))
    assert shown() == 3, "its log says why it has not come so far as to run the job"
    take(steps.CreateAttempt(1, Cause.RECOVER))
    rescale()
    assert shown() == 4
    write_log(settings.home, job["id"], 5)
    take(steps.SwitchOver())
    assert shown() == 5
    take(steps.FailJob(failure))
    assert shown() == 5, "it was to run the job, and has died"


def test_a_few_logs_are_searched_at_once_and_one_of_a_user(
    client: httpx.Client, context: Context, settings: Settings, secretive: str
) -> None:
    write_log(settings.home, secretive)
    launch(context, secretive, context.launcher.place)
    me = client.get("/v1/whoami").json()["id"]
    with context.searches.place(me):
        refused = client.get("/v1/jobs/secretive/logs", params={"search": "key"})
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_IN_FLIGHT")
        assert client.get("/v1/jobs/secretive/logs").status_code == 200, "reading is no search"
    with context.searches.place("ada"), context.searches.place("bob"):
        assert client.get("/v1/jobs/secretive/logs", params={"search": "key"}).status_code == 429
    assert client.get("/v1/jobs/secretive/logs", params={"search": "key"}).json()["matches"]


@pytest.fixture
def other(settings: Settings, context: Context, secretive: str) -> Iterator[Context]:
    """Another replica, which has the log of the job and has announced itself."""
    home = settings.home / "other"
    home.mkdir()
    with new_listener() as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        other = make_context(replace(settings, home=home, own_url=url), context.engine)
        write_log(home, secretive)
        launch(context, secretive, other.launcher.place)
        with served(create_app(other, reconcile=False), listener):
            yield other


def announce(context: Context, other: Context, url: str | None = None) -> None:
    with context.sessions.begin() as session:
        replicas.announce(session, other.announcer.replica_id, url or other.settings.control_url)


@pytest.mark.real
def test_another_replica_fetches_the_log_in_the_name_of_its_reader(
    client: httpx.Client, context: Context, other: Context
) -> None:
    refused = client.get("/v1/jobs/secretive/logs")
    assert (refused.status_code, refused.json()["code"]) == (404, "LOG_NOT_HERE"), (
        "the other one has not announced itself"
    )
    with context.sessions.begin() as session:
        add_token(session, "viewer-of-a", Role.VIEWER, JobScope(labels={"team": "a"}))
        add_token(session, "viewer-of-b", Role.VIEWER, JobScope(labels={"team": "b"}))
    announce(context, other)
    shown = client.get("/v1/jobs/secretive/logs", headers={"Authorization": "Bearer viewer-of-a"})
    assert (shown.status_code, shown.json()["text"]) == (200, LOG.replace("of-the-orders", "*****"))
    part = client.get("/v1/jobs/secretive/logs", params={"offset": 6, "limit_bytes": 30, "attempt": 1}).json()
    assert part["text"] == "the key is *****\n"
    found = client.get("/v1/jobs/secretive/logs", params={"search": "KEY is+ä/?&#%'\""})
    assert (found.status_code, found.json()["matches"]) == (200, [])
    hidden = client.get("/v1/jobs/secretive/logs", headers={"Authorization": "Bearer viewer-of-b"})
    assert (hidden.status_code, hidden.json()["code"]) == (404, "JOB_NOT_FOUND")


def test_a_program_at_the_address_of_a_replica_that_has_ended_gets_no_credential(
    client: httpx.Client, context: Context, other: Context
) -> None:
    with stand_in_server("a-guess", other.announcer.replica_id) as stranger:
        announce(context, other, stranger.url)
        refused = client.get("/v1/jobs/secretive/logs", headers={"Cookie": "keyscale_session=of-a-browser"})
    assert (refused.status_code, refused.json()["code"]) == (404, "LOG_NOT_HERE")
    assert "has not proved" in refused.json()["detail"]
    assert (stranger.asked, stranger.credentials) == (["/proofs/replica"], set())


@pytest.mark.usefixtures("on_socket")
def test_replicas_do_not_send_a_request_in_a_circle(client: httpx.Client, context: Context, secretive: str) -> None:
    own_url = str(client.base_url).rstrip("/")
    object.__setattr__(context, "settings", replace(context.settings, own_url=own_url))
    launch(context, secretive, "elsewhere:/home")
    with context.sessions.begin() as session:
        replicas.announce(session, replica_id("elsewhere:/home"), own_url)
    refused = client.get("/v1/jobs/secretive/logs")
    assert (refused.status_code, refused.json()["code"]) == (404, "LOG_NOT_HERE")
    assert "has not proved" in refused.json()["detail"]


def test_the_answering_replica_gets_a_token_for_this_request_alone(
    client: httpx.Client, context: Context, other: Context
) -> None:
    with context.sessions.begin() as session:
        key = replicas.shared_key(session)
    with stand_in_server(key, other.announcer.replica_id) as stand_in:
        announce(context, other, stand_in.url)
        client.get("/v1/jobs/secretive/logs", params={"offset": 1})
    [credential] = stand_in.credentials
    assert (credential.split()[0], TOKEN in credential) == (SCHEME, False)
    job = client.get("/v1/jobs/secretive").json()["id"]
    headers, url = {"Authorization": credential}, other.settings.control_url
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as to:
        sent = {"attempt": 1, "tail_bytes": 65536, "offset": 1, "limit_bytes": 65536}
        paths = ("/v1/jobs", f"/v1/jobs/{job}", f"/v1/jobs/{job}/logs", f"/v1/jobs/{job}/logs?offset=2")
        assert {to.get(path).status_code for path in paths} == {401}
        assert to.post(f"/v1/jobs/{job}/cancel").status_code == 401
        assert to.get(f"/v1/jobs/{job}/logs", params=sent).status_code == 200
        assert to.request("GET", f"/v1/jobs/{job}/logs", params=sent, content=b"x").status_code == 401
    refused = client.get(f"/v1/jobs/{job}/logs", params=sent, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "TOKEN_INVALID"), "another replica"


@pytest.mark.real
def test_no_offset_and_no_limit_show_a_piece_of_a_secret(
    client: httpx.Client, context: Context, settings: Settings, secretive: str
) -> None:
    write_log(settings.home, secretive)
    launch(context, secretive, context.launcher.place)
    content = f"{'x' * 50}of-the-orders{'x' * 50}"
    (settings.home / "runs" / secretive / "1" / "driver.log").write_text(content)
    parts = [{"offset": offset, "limit_bytes": 7} for offset in range(len(content))]
    ends = [{"tail_bytes": length} for length in range(1, len(content))]
    for part in [*parts, *ends]:
        assert set(client.get("/v1/jobs/secretive/logs", params=part).json()["text"]) <= set("x*"), part
    with (settings.home / "runs" / secretive / "1" / "driver.log").open("a") as log:
        log.write("of-the-ord")
    found = client.get("/v1/jobs/secretive/logs", params={"search": "x"}).json()["matches"]
    assert [set(each["text"]) for each in found] == [set("x*")]
