"""Each request has an id; events say who did it and from where, refused requests too; too many are slowed down."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli.root import main
from keyscale.api.events import event_export
from keyscale.api.lifecycle.reconciler import ReconcilerPulse
from keyscale.api.maintenance import history_retention
from keyscale.api.maintenance.history_retention import HistoryPolicy, HistoryRetention
from keyscale.api.web.request_origin import RequestIdFilter
from keyscale.db.job_scope import JobScope
from keyscale.db.repositories import events as events_of_database
from keyscale.vocabulary import Role
from tests.integration.api.conftest import TOKEN, add_token
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.api.lifecycle.leadership import Leadership
    from keyscale.api.settings import Settings

pytestmark = pytest.mark.either_database


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def events(client: httpx.Client, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/events", params={"kind": kind}, headers=bearer(TOKEN)).json()[
        "events"
    ]
    return found


def test_every_answer_has_a_request_id_also_an_error(anonymous: httpx.Client) -> None:
    seen = set()
    for path, headers in (
        ("/health", {}),
        ("/v1/jobs", {}),
        ("/nowhere", {}),
        ("/ui/login", {}),
        ("/v1/jobs", {"Host": "evil.example"}),
    ):
        seen.add(anonymous.get(path, headers=headers).headers["x-request-id"])
    assert len(seen) == 5
    assert all(re.fullmatch(r"[0-9a-f]{32}", request_id) for request_id in seen)


def test_a_defect_is_answered_and_logged_with_the_request_id(
    anonymous: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("keyscale.api.access_tokens.tokens.list_all", fail)
    caplog.handler.addFilter(RequestIdFilter())
    answer = anonymous.get("/v1/tokens", headers=bearer(TOKEN))
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    logged = {record.request_id for record in caplog.records if record.message == "a request failed"}
    assert logged == {answer.headers["x-request-id"]}


@pytest.mark.parametrize("chosen", ["deploy-2026.11_24", "a" * 64])
def test_a_client_may_choose_the_request_id(anonymous: httpx.Client, chosen: str) -> None:
    assert anonymous.get("/health", headers={"X-Request-ID": chosen}).headers["x-request-id"] == chosen


@pytest.mark.parametrize("chosen", ["short", "a" * 65, "with space in", "new\tline-here"])
def test_an_unfit_request_id_is_replaced(anonymous: httpx.Client, chosen: str) -> None:
    assert anonymous.get("/health", headers={"X-Request-ID": chosen}).headers["x-request-id"] != chosen


def test_log_lines_name_request_user_and_address_and_no_token(
    anonymous: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(RequestIdFilter())
    caplog.set_level(logging.INFO)
    answer = anonymous.post("/v1/jobs/a%0Ab/start", headers=bearer(TOKEN))

    def written() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name.endswith("request_origin")]

    lines = wait_until(written, what="the line, which is written after the answer")
    assert [record.request_id for record in lines] == [answer.headers["x-request-id"]]
    assert re.fullmatch(r"POST /v1/jobs/a%0Ab/start: 404 in \d+ ms, from 127.0.0.1, by admin", lines[0].message)
    assert TOKEN not in caplog.text


def test_an_event_says_who_did_it_from_where_and_in_which_request(anonymous: httpx.Client) -> None:
    answer = anonymous.post("/v1/artifacts", files={"file": ("a.py", b"print(1)\n")}, headers=bearer(TOKEN))
    (event,) = events(anonymous, "ARTIFACT_UPLOADED")
    me = anonymous.get("/v1/whoami", headers=bearer(TOKEN)).json()
    assert (event["actor"], event["actor_id"]) == ("admin", me["id"])
    assert (event["address"], event["request_id"]) == ("127.0.0.1", answer.headers["x-request-id"])


def test_every_kind_of_refused_request_is_an_event(anonymous: httpx.Client, context: Context) -> None:
    with context.sessions.begin() as session:
        add_token(session, "expired", Role.ADMIN, expires_at_ms=1)
        add_token(session, "viewer", Role.VIEWER)
        add_token(session, "scoped", Role.OPERATOR, JobScope(labels={"team": "b"}))
    artifact = anonymous.post("/v1/artifacts", files={"file": ("a.py", b"print(1)\n")}, headers=bearer("scoped")).json()
    body = {"name": "a", "spec": {"artifact_id": artifact["id"]}}
    attempts = [
        ("wrong", "GET", "/v1/jobs", "TOKEN_INVALID", "unknown"),
        ("expired", "GET", "/v1/jobs", "TOKEN_EXPIRED", "unknown"),
        ("viewer", "POST", "/v1/jobs/a/start", "ROLE_TOO_LOW", "viewer"),
        ("scoped", "GET", "/v1/jobs/a", "JOB_NOT_FOUND", "scoped"),
        ("scoped", "POST", "/v1/jobs", "OUT_OF_SCOPE", "scoped"),
        ("wrong", "POST", "/driver/heartbeat", "TOKEN_INVALID", "unknown"),
    ]
    for token, method, path, code, actor in attempts:
        answer = anonymous.request(method, path, headers=bearer(token), json=body if method == "POST" else None)
        assert answer.json()["code"] == code
        event = events(anonymous, "ACCESS_DENIED")[0]
        assert (event["details"]["code"], event["actor"]) == (code, actor)
        assert (event["address"], event["request_id"]) == ("127.0.0.1", answer.headers["x-request-id"])
        assert (event["details"]["method"], event["details"]["path"]) == (method, path)
        assert token not in event["message"] or token in path
    assert len(events(anonymous, "ACCESS_DENIED")) == len(attempts)
    assert anonymous.get("/v1/jobs/none", headers=bearer(TOKEN)).status_code == 404  # an administrator's typo is none
    assert len(events(anonymous, "ACCESS_DENIED")) == len(attempts)


@pytest.mark.real
def test_refused_requests_push_no_other_event_out(
    client: httpx.Client, context: Context, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_retention, "REFUSALS_KEPT", 5)
    client.post("/v1/tokens", json={"name": "deploy", "role": "VIEWER"})
    for _ in range(8):
        assert client.get("/v1/jobs", headers=bearer("wrong")).status_code == 401
    shown = client.get("/v1/events", params={"limit": 5}).json()["events"]
    assert [event["kind"] for event in shown] == ["TOKEN_CREATED"]
    with context.sessions.begin() as session:
        for kind in ("JOB_RUNNING", "JOB_STOPPED"):
            at_ms = 10**15  # far from the age of the oldest event
            events_of_database.record(session, job_id=None, at_ms=at_ms, kind=kind, message="it happened")
    policy = HistoryPolicy(checkpoints=1, detailed_checkpoints=1, attempts=1, event_days=1, events=2)
    removed = HistoryRetention(context.sessions, ReconcilerPulse(), policy).run(leadership)
    assert (removed["refusals"], len(events(client, "ACCESS_DENIED"))) == (3, 5)
    kinds = [each["kind"] for each in client.get("/v1/events").json()["events"]]
    assert kinds == ["HISTORY_REMOVED", "JOB_STOPPED", "JOB_RUNNING"]  # the newest two before the pass, and its own


def test_very_large_details_of_an_event_are_left_out(client: httpx.Client, context: Context) -> None:
    with context.sessions.begin() as session:
        for text in ("x" * 20_000, "x"):
            events_of_database.record(
                session, job_id=None, at_ms=1, kind="JOB_RUNNING", message="m", code="c", text=text
            )
    assert [event["details"] for event in events(client, "JOB_RUNNING")] == [
        {"code": "c", "text": "x"},
        {"omitted": ["code", "text"]},
    ]


def test_an_export_has_every_chosen_event_that_the_user_may_see(
    client: httpx.Client, context: Context, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_export, "EVENTS_AT_ONCE", 2)
    with context.sessions.begin() as session:
        add_token(session, "scoped", Role.VIEWER, JobScope(frozenset({"flights"})))
        for at_ms in range(5):
            message = f'the "{at_ms}", with a comma'
            for job_id in (job["id"], "other"):
                events_of_database.record(session, job_id=job_id, at_ms=at_ms, kind="JOB_FAILED", message=message)
    query: dict[str, Any] = {"kind": "JOB_FAILED", "from_ms": 1}
    answer = client.get("/v1/events/export", params=query, headers=bearer("scoped"))
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["at_ms"] for line in answer.text.splitlines()] == [4, 3, 2, 1]
    whole = client.get("/v1/events", params=query | {"job": "flights"}).json()["events"]
    exported = client.get("/v1/events/export", params=query | {"job": "flights", "format": "csv"})
    rows = list(csv.DictReader(io.StringIO(exported.text)))
    assert [(int(row["id"]), row["message"], json.loads(row["details"])) for row in rows] == [
        (each["id"], each["message"], each["details"]) for each in whole
    ]
    assert client.get("/v1/events/export", params={"format": "xml"}).json()["code"] == "REQUEST_INVALID"


def test_events_are_chosen_by_kind_job_actor_and_time(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    with context.sessions.begin() as session:
        add_token(session, "ada", Role.VIEWER)
        add_token(session, "scoped", Role.VIEWER, JobScope(frozenset({"flights"})))
        for at_ms, kind, job_id, actor in (
            (10, "JOB_FAILED", job["id"], "system"),
            (20, "JOB_FAILED", "deleted", "ada"),
            (30, "JOB_STARTED", job["id"], "ada"),
            (40, "SIGNED_IN", None, "ada"),
        ):
            events_of_database.record(
                session, job_id=job_id, at_ms=at_ms, kind=kind, actor=actor, message="it happened"
            )

    def times(path: str = "/v1/events", token: str = TOKEN, **query: Any) -> list[int]:
        answer = client.get(path, params={"to_ms": 100, **query}, headers=bearer(token))
        assert answer.status_code == 200, answer.text
        return [event["at_ms"] for event in answer.json()["events"]]

    assert times() == [40, 30, 20, 10]
    assert times(kind="JOB_FAILED") == [20, 10]
    assert times(kind=["JOB_STARTED", "SIGNED_IN"]) == [40, 30]
    assert (times(job="flights"), times(job=job["id"], kind="JOB_FAILED")) == ([30, 10], [10])
    assert (times(job="deleted"), times(job="nothing")) == ([20], [])
    assert (times(actor="ada"), times(actor="ada", kind="JOB_FAILED")) == ([40, 30, 20], [20])
    assert (times(from_ms=20, to_ms=30), times(from_ms=41)) == ([30, 20], [])
    assert times("/v1/jobs/flights/events", actor="ada") == [30]
    assert times(token="ada") == [30, 20, 10], "not for a viewer: who signed in"  # noqa: S106 - a test's own
    assert times(token="ada", kind="SIGNED_IN") == []  # noqa: S106
    assert (times(token="scoped"), times(token="scoped", actor="ada")) == ([30, 10], [30])  # noqa: S106
    assert times(token="scoped", job="deleted") == []  # noqa: S106
    first = client.get("/v1/events", params={"kind": "JOB_FAILED", "limit": 1}).json()
    assert [event["at_ms"] for event in first["events"]] == [20]
    rest = client.get("/v1/events", params={"kind": "JOB_FAILED", "limit": 1, "after": first["next"]}).json()
    assert ([event["at_ms"] for event in rest["events"]], rest["next"]) == ([10], None)
    for query in (
        {"kind": "x"},
        {"kind": "NOSUCH"},
        {"kind": ["JOB_FAILED"] * 21},
        {"actor": "a\0"},
        {"job": "\0"},
        {"from_ms": -1},
    ):
        refused = client.get("/v1/events", params=query)
        assert (refused.status_code, refused.json()["code"]) == (422, "REQUEST_INVALID"), query


@pytest.mark.usefixtures("on_socket", "job")
def test_the_command_lists_the_chosen_events(client: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--url", str(client.base_url), "--token", TOKEN, "events", "--json"]
    assert main([*command, "flights", "--kind", "job_created", "--actor", "admin", "--since", "2020-01-01"]) == 0
    assert [event["kind"] for event in json.loads(capsys.readouterr().out)["events"]] == ["JOB_CREATED"]
    assert main([*command, "--until", "2020-01-01"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == []
    job_id = client.get("/v1/jobs/flights").json()["id"]
    assert client.delete("/v1/jobs/flights").status_code == 204
    assert main([*command, job_id, "--kind", "JOB_CREATED"]) == 0
    assert len(json.loads(capsys.readouterr().out)["events"]) == 1, "of a deleted job"
    assert main([*command, "flihgts"]) == 1
    assert "JOB_NOT_FOUND" in capsys.readouterr().err


class TestLimits:
    """With small limits, so that a few requests exceed them."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, user_requests_per_second=2, failures_per_minute=3)

    def test_a_user_who_sends_too_many_requests_is_told_when_to_go_on_and_others_are_served(
        self, anonymous: httpx.Client, context: Context
    ) -> None:
        with context.sessions.begin() as session:
            add_token(session, "viewer", Role.VIEWER)
        answers = [anonymous.get("/v1/jobs", headers=bearer("viewer")) for _ in range(40)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert answers[0].status_code == 200
        assert {(answer.json()["code"], answer.headers["retry-after"]) for answer in refused} == {("RATE_LIMITED", "1")}
        assert anonymous.get("/v1/jobs", headers=bearer(TOKEN)).status_code == 200

    def test_an_address_that_sends_wrong_tokens_is_slowed_down_and_a_right_one_still_works(
        self, anonymous: httpx.Client
    ) -> None:
        answers = [anonymous.get("/v1/jobs", headers=bearer("wrong")) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
        assert anonymous.get("/v1/jobs", headers=bearer(TOKEN)).status_code == 200
        assert len(events(anonymous, "ACCESS_DENIED")) == 3  # the others fill no database

    def test_failed_sign_ins_are_slowed_down_before_the_token_is_looked_at(self, anonymous: httpx.Client) -> None:
        for _ in range(3):
            assert anonymous.post("/ui/login", data={"token": "wrong"}).status_code == 403
        answer = anonymous.post("/ui/login", data={"token": TOKEN})
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert "Try again in" in answer.text

    def test_a_driver_without_a_valid_token_is_told_so_however_often_it_asks(self, anonymous: httpx.Client) -> None:
        codes = {anonymous.post("/driver/heartbeat", headers=bearer("wrong"), json={}).status_code for _ in range(10)}
        assert codes == {401}


class TestAddressLimit:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, address_requests_per_second=1)

    def test_an_address_that_sends_too_many_requests_gets_429_with_a_request_id(self, anonymous: httpx.Client) -> None:
        answers = [anonymous.get("/ui/login") for _ in range(20)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert {(answer.json()["code"], answer.headers["retry-after"]) for answer in refused} == {("RATE_LIMITED", "1")}
        assert all("x-request-id" in answer.headers for answer in refused)
