"""Event streams say what has changed, to those who may know it, without a connection to the database for each."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.access.credentials import Credential
from keyscale.api.access.principal import Principal
from keyscale.api.control_plane import change_feed, subscriber
from keyscale.api.control_plane.change_feed import ChangeFeed
from keyscale.api.control_plane.subscriber import JOBS_NAMED_MAX, Subject, Subscriber, Topic
from keyscale.api.web import serve
from keyscale.clock import now_ms
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Attempt, Operation
from keyscale.db.repositories import events, job_versions, tokens
from keyscale.db.repositories.job_versions import JobVersions
from keyscale.vocabulary import AttemptStage, OperationKind, OperationStatus, Role
from tests.integration.api.conftest import TOKEN, add_token, served
from tests.integration.api.test_reads import statements
from tests.support.coroutines import run_coroutine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI

    from keyscale.api.control_plane.context import Context
    from keyscale.api.settings import Settings

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("on_socket")]

ALL = ["job", "metrics", "checkpoints", "operations", "events"]


@dataclass
class Reader:
    """The messages of a stream, as they arrive."""

    messages: list[tuple[str, Any]] = field(default_factory=list)
    comments: int = 0
    has_ended: bool = False

    def read(self, answer: httpx.Response) -> None:
        event = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                self.messages.append((event, json.loads(line.removeprefix("data: "))))
            elif line.startswith(":"):
                self.comments += 1
        self.has_ended = True

    def wait(self, what: str, found: Callable[[str, Any], bool], after: int = 0) -> tuple[str, Any]:
        def look() -> tuple[str, Any] | None:
            return next((message for message in self.messages[after:] if found(*message)), None)

        seen: tuple[str, Any] = wait_until(look, what=what)
        return seen


@contextmanager
def reading(client: httpx.Client, path: str, **options: Any) -> Iterator[Reader]:
    """Reads a stream in a thread; the reader goes away at the end."""
    reader = Reader()
    with httpx.Client(base_url=client.base_url, trust_env=False, timeout=20) as own:
        headers = {"Authorization": client.headers["Authorization"], **options.pop("headers", {})}
        with own.stream("GET", path, headers=headers, **options) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")

            def read() -> None:
                try:
                    reader.read(answer)
                except (httpx.TransportError, httpx.StreamError):
                    reader.has_ended = True

            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            try:
                yield reader
            finally:  # closing it would not wake the thread that reads it
                with suppress(OSError):
                    answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                thread.join(10)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "POLL_S", 0.05)
    monkeypatch.setattr(change_feed, "CHECK_S", 0.1)


def names(topic: str) -> Callable[[str, Any], bool]:
    return lambda event, data: event == "change" and topic in data["topics"]


def settled(reader: Reader, messages: int = 2) -> int:
    """Waits for the first messages of a stream; returns their number.

    The first look for a stream names all topics again, unless another stream has looked for the same before.
    """
    reader.wait("the first messages", lambda *_: len(reader.messages) >= messages)
    return messages


def record(context: Context, job_id: str) -> None:
    with context.sessions.begin() as session:
        events.record(session, job_id=job_id, at_ms=now_ms(), kind="TRIED", message="it was tried")


def test_the_first_message_names_everything_and_comes_at_once(client: httpx.Client, job: dict[str, Any]) -> None:
    answer = client.get(f"/v1/jobs/{job['name']}/stream", params={"seconds": 0})
    assert answer.text.startswith("retry: 2000\n\nevent: change\ndata: ")
    reader = Reader()
    reader.read(answer)
    assert [(event, data["topics"], data["job_ids"]) for event, data in reader.messages] == [
        ("change", ALL, [job["id"]])
    ]
    reader = Reader()
    reader.read(client.get("/v1/stream", params={"seconds": 0}))
    assert [(data["topics"], data["job_ids"]) for _, data in reader.messages] == [(ALL[:2], None)]


def test_a_stream_of_a_job_that_is_not_there_is_refused(client: httpx.Client) -> None:
    for path in ("/v1/jobs/none/stream", "/v1/operations/none/stream"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


def test_each_topic_is_named_when_it_changes_and_only_then(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    with reading(client, f"/v1/jobs/{job['id']}/stream") as reader:
        seen = settled(reader)
        record(context, job["id"])
        _, data = reader.wait("the event", names("events"), seen)
        assert data["topics"] == ["events"]
        seen = len(reader.messages)
        with context.sessions.begin() as session:
            session.add(Attempt(job_id=job["id"], number=1, stage=AttemptStage.ACTIVE, cause="start", parallelism=1,
                                created_at_ms=1))  # fmt: skip
        assert reader.wait("the attempt", names("metrics"), seen)[1]["topics"] == ["metrics"]
        seen = len(reader.messages)
        with context.sessions.begin() as session:
            session.add(Operation(id="nightly", job_id=job["id"], old_attempt=1, kind=OperationKind.SAVEPOINT,
                                status=OperationStatus.IN_PROGRESS, requested_at_ms=1))  # fmt: skip
        assert reader.wait("the command", names("operations"), seen)[1]["topics"] == ["operations"]
        seen = len(reader.messages)
        with context.sessions.begin() as session:
            session.execute(
                text("INSERT INTO heartbeats (job_id, attempt, at_ms) SELECT job_id, number, 5 FROM attempts")
            )
        assert reader.wait("the heartbeat", names("metrics"), seen)[1]["topics"] == ["metrics"]
        assert client.post(f"/v1/jobs/{job['id']}/start").status_code == 202
        reader.wait("the start", names("job"), seen)


def test_a_stream_of_all_jobs_tells_of_those_in_scope_only(
    client: httpx.Client, context: Context, upload: Callable[..., Any], job: dict[str, Any]
) -> None:
    with context.sessions.begin() as session:
        add_token(session, "viewer-of-b", Role.VIEWER, JobScope(labels={"team": "b"}))
    body = {"name": "billing", "labels": {"team": "b"}, "spec": {"artifact_id": upload().json()["id"]}}
    with (
        reading(client, "/v1/stream") as everything,
        reading(client, "/v1/stream", headers={"Authorization": "Bearer viewer-of-b"}) as some,
    ):
        seen, seen_of_some = settled(everything), settled(some, 1)
        assert client.post(f"/v1/jobs/{job['id']}/start").status_code == 202
        _, data = everything.wait("the start", names("job"), seen)
        assert data["job_ids"] == [job["id"]]
        billing = client.post("/v1/jobs", json=body).json()
        some.wait("the new job", lambda _, data: data["job_ids"] == [billing["id"]], seen_of_some)
        assert not [data for _, data in some.messages[seen_of_some:] if data["job_ids"] != [billing["id"]]]


def test_the_stream_of_an_operation_shows_it_and_ends_with_it(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    with context.sessions.begin() as session:
        session.add(Operation(id="nightly", job_id=job["id"], old_attempt=1, kind=OperationKind.SAVEPOINT,
                            status=OperationStatus.IN_PROGRESS, requested_at_ms=1))  # fmt: skip
    with reading(client, "/v1/operations/nightly/stream") as reader:
        reader.wait("the operation", lambda event, data: event == "operation" and data["status"] == "IN_PROGRESS")
        with context.sessions.begin() as session:
            session.execute(text("UPDATE operations SET status = 'COMPLETED', location = 'file:///x', ended_at_ms = 2"))
        wait_until(lambda: reader.has_ended, what="the end of the stream")
        assert reader.messages[-1][1] == client.get("/v1/operations/nightly").json()
        assert reader.messages[-1][1]["status"] == "COMPLETED"
    done = client.get("/v1/operations/nightly/stream")  # it ends by itself
    assert done.text.count("event: operation") == 1


def test_a_stream_ends_when_its_job_is_deleted(client: httpx.Client, job: dict[str, Any]) -> None:
    with reading(client, f"/v1/jobs/{job['id']}/stream") as reader:
        settled(reader)
        assert client.delete(f"/v1/jobs/{job['id']}").status_code == 204
        wait_until(lambda: reader.has_ended, what="the end of the stream")
        assert reader.messages[-1] == ("gone", {})


@pytest.mark.parametrize("how", ["revoked", "expired", "signed out", "session's token revoked"])
def test_a_stream_ends_with_the_validity_of_its_token_or_session(
    client: httpx.Client, context: Context, how: str
) -> None:
    with context.sessions.begin() as session:
        expires = now_ms() + 1500 if how == "expired" else None
        token = add_token(session, "the-visitor-token", Role.VIEWER, expires_at_ms=expires)
    headers = {"Authorization": "Bearer the-visitor-token"}
    if how in {"signed out", "session's token revoked"}:
        signed_in = httpx.post(f"{client.base_url}/ui/login", data={"token": "the-visitor-token"})
        cookie = signed_in.cookies[SESSION_COOKIE]
        headers = {"Authorization": "", "Cookie": f"{SESSION_COOKIE}={cookie}"}
    with reading(client, "/v1/stream", headers=headers) as reader, reading(client, "/v1/stream") as other:
        settled(reader)
        if "revoked" in how:
            with context.sessions.begin() as session:
                found = tokens.find_by_id(session, token.id)
                assert found is not None
                found.revoked_at_ms = now_ms()
        if how == "signed out":
            httpx.post(f"{client.base_url}/ui/logout", headers={"Cookie": headers["Cookie"]})
        wait_until(lambda: reader.has_ended, what="the end of the stream")
        assert reader.messages[-1] == ("over", {})
        assert not other.has_ended


def test_listeners_hold_no_connection_and_share_the_looks(
    client: httpx.Client, context: Context, job: dict[str, Any]
) -> None:
    with reading(client, f"/v1/jobs/{job['id']}/stream") as one, reading(client, "/v1/stream") as another:
        settled(one)
        settled(another)
        wait_until(lambda: context.engine.pool.checkedout() == 0, what="no connection in use")  # type: ignore[attr-defined]
        with statements(context) as sent:
            context.change_feed.poll()
        with reading(client, f"/v1/jobs/{job['id']}/stream") as third:
            settled(third, 1)
            assert context.change_feed.streams == 3
            with statements(context) as sent_for_three:
                context.change_feed.poll()
        # The thread looks, too, meanwhile.
        assert 1 <= len([statement for statement in sent if "FROM jobs j LEFT JOIN" in statement]) <= 3
        assert len(set(sent_for_three)) <= 4
    wait_until(lambda: context.change_feed.streams == 0, what="the readers to be forgotten")


def test_too_many_streams_are_refused(client: httpx.Client, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.change_feed, "_streams_of_user_max", 1)
    with reading(client, "/v1/stream"):
        answer = client.get("/v1/stream")
        assert (answer.status_code, answer.json()["code"]) == (429, "TOO_MANY_IN_FLIGHT")
    wait_until(lambda: context.change_feed.streams == 0, what="the reader to be forgotten")
    assert client.get("/v1/stream", params={"seconds": 0}).status_code == 200


def test_a_quiet_stream_has_heartbeats(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "HEARTBEAT_S", 0.05)
    with reading(client, "/v1/stream") as reader:
        wait_until(lambda: reader.comments > 2, what="heartbeats")


def test_readers_are_told_when_the_database_is_away_and_when_it_is_back(
    client: httpx.Client, context: Context, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with reading(client, f"/v1/jobs/{job['id']}/stream") as reader:
        settled(reader)
        sessions = context.change_feed._sessions
        monkeypatch.setattr(context.change_feed, "_sessions", _away)
        reader.wait("the outage", lambda event, _: event == "away")
        seen = len(reader.messages)
        monkeypatch.setattr(context.change_feed, "_sessions", sessions)
        assert reader.wait("the return", names("job"), seen)[1]["topics"] == ALL


def _away() -> None:
    raise OperationalError("SELECT 1", {}, Exception("the database is away"))


def test_a_slow_reader_costs_a_bounded_amount_of_memory() -> None:
    async def many() -> list[str]:
        slow = Subscriber(Subject(), Principal("1", "a", Role.VIEWER), Credential(None))
        messages = slow.messages(600.0)
        first = [await anext(messages), await anext(messages)]
        for number in range(10 * JOBS_NAMED_MAX):
            slow.tell([Topic.JOB], [f"job-{number}"])
        slow.end()
        return first + [message async for message in messages]

    told = run_coroutine(many())
    assert len([message for message in told if message.startswith("event: change")]) == 2
    assert json.loads(told[2].partition("data: ")[2])["job_ids"] is None


@pytest.mark.parametrize("why", ["over", "gone"])
def test_a_reader_that_may_no_longer_know_is_told_nothing_but_that(why: str) -> None:
    async def ended() -> list[str]:
        slow = Subscriber(Subject(), Principal("1", "a", Role.VIEWER), Credential(None))
        messages = slow.messages(600.0)
        await anext(messages)
        slow.tell([Topic.JOB], ["job-1"])
        slow.end(why)
        return [message async for message in messages]

    assert run_coroutine(ended())[1:] == [f"event: {why}\ndata: {{}}\n\n"]


def test_a_change_is_looked_at_once_for_all_readers_of_one_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    covers = JobScope.covers

    def counted(scope: JobScope, **job: Any) -> bool:
        looked.append(job["job_id"])
        return covers(scope, **job)

    def look(version: int) -> dict[str, JobVersions]:
        topics = {"job": str(version), "metrics": None}
        return {f"job-{team}": JobVersions(f"job-{team}", "", f'{{"team": "{team}"}}', topics) for team in "ab"}

    async def told() -> list[list[str]]:
        scopes = [JobScope(labels={"team": "a"})] * 50 + [JobScope(labels={"team": "b"})] * 50
        open_streams = [
            Subscriber(Subject(), Principal(str(n), "", Role.VIEWER, scope), Credential(None))
            for n, scope in enumerate(scopes)
        ]
        streams = [each.messages(600.0) for each in open_streams]
        for stream in streams:
            await anext(stream)
            await anext(stream)
        watcher = ChangeFeed(cast("Any", None), cast("Any", None))
        for version in (1, 2):
            monkeypatch.setattr(job_versions, "of_all_jobs", lambda _, version=version: look(version))
            watcher._all = look(1)
            watcher._poll_all(cast("Any", None), open_streams)
        return [json.loads((await anext(stream)).partition("data: ")[2])["job_ids"] for stream in streams]

    monkeypatch.setattr(JobScope, "covers", counted)
    assert run_coroutine(told()) == [["job-a"]] * 50 + [["job-b"]] * 50
    assert len(looked) == 4, "two scopes and two jobs"


def test_a_reader_that_stops_reading_loses_its_stream(
    app: FastAPI, context: Context, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "UNREAD_MS_MAX", 1_000)
    job_ids = ["x" * 10_000] * 10
    opened: list[Subscriber] = []
    open_one = context.change_feed.open

    def noted(*arguments: Any, **options: Any) -> Subscriber:
        opened.append(open_one(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(context.change_feed, "open", noted)

    def is_dropped() -> bool:
        opened[0].tell([Topic.JOB], {f"{number}{job_id}" for number, job_id in enumerate(job_ids)})
        return context.change_feed.streams == 0

    with served(app, serve.listen(replace(settings, host="127.0.0.1", port=0))) as client, socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((client.base_url.host, client.base_url.port))
        host = client.base_url.netloc.decode()
        request = f"GET /v1/stream HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        stuck.sendall(request.encode())
        wait_until(lambda: context.change_feed.streams == 1, what="the stream")
        wait_until(is_dropped, 60, what="the stream's end")
