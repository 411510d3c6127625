"""Each stream is of its own subject, and its reader's credential ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect, Request

from keyscale.api.access.credentials import Credential
from keyscale.api.access.principal import Principal
from keyscale.api.access.tokens import token_sha256
from keyscale.api.control_plane.subscriber import Subject
from keyscale.api.events import stream_routes
from keyscale.api.events.stream_routes import EventStream, stream_all, stream_job, stream_operation
from keyscale.vocabulary import Role
from tests.support.coroutines import run_coroutine

USER = Principal("id", "ann", Role.VIEWER, expires_at_ms=7)
CREDENTIAL = Credential(7, token_sha256=token_sha256("abc"))


class Feed:
    """The changes of a control plane, whose streams end at once."""

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.dropped: list[Any] = []
        self.context: Any = SimpleNamespace(change_feed=self)

    def open(self, *of: Any, **more: Any) -> Any:
        self.opened.append((*of, more))
        return SimpleNamespace(messages=self.messages)

    async def messages(self, seconds: float) -> Any:
        yield f"of {seconds} s"

    def drop(self, subscriber: Any) -> None:
        self.dropped.append(subscriber)

    async def read(self, stream: EventStream) -> list[Any]:
        """Returns the messages that the web server gets of a stream."""
        messages: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            messages.append(message)

        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        return messages


async def opened(feed: Feed, what: str) -> EventStream:
    headers = [(b"authorization", b"Bearer abc")]
    request = Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers})
    match what:
        case "all":
            return await stream_all(feed.context, USER, request, 5.0)
        case "job":
            return await stream_job(feed.context, USER, request, "the-job", 5.0)
    operation: Any = SimpleNamespace(id="o", model_dump=lambda mode: {"id": "o", "mode": mode})
    return await stream_operation(feed.context, USER, request, operation, 5.0)


@pytest.mark.parametrize(
    ("what", "subject", "more"),
    [
        ("all", Subject(), {}),
        ("job", Subject(job_id="the-job"), {}),
        ("operation", Subject(operation_id="o"), {"operation": {"id": "o", "mode": "json"}}),
    ],
)
def test_a_stream_is_of_its_subject_and_makes_room_at_its_end(
    what: str, subject: Subject, more: dict[str, Any]
) -> None:
    feed = Feed()

    async def read() -> list[Any]:
        return await feed.read(await opened(feed, what))

    start, *parts = run_coroutine(read())
    assert feed.opened == [(subject, USER, CREDENTIAL, more)]
    assert len(feed.dropped) == 1
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
    assert b"".join(part["body"] for part in parts) == b"of 5.0 s"


def test_the_stream_of_a_job_and_of_an_operation_are_of_what_their_path_names(monkeypatch: pytest.MonkeyPatch) -> None:
    context = cast("Any", "context")
    monkeypatch.setattr(stream_routes.jobs, "id_of", lambda _, name: {"flights": "the-job"}[name])
    monkeypatch.setattr(stream_routes.operations, "show", lambda _, name: {"o": "shown"}[name])
    assert stream_routes._job(context, USER, "flights") == "the-job"
    assert stream_routes._operation(context, USER, "o") == cast("Any", "shown")


def test_a_stream_whose_reader_goes_away_makes_room_too() -> None:
    feed = Feed()

    async def read() -> None:
        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(_: Any) -> None:
            raise ConnectionResetError

        stream = await opened(feed, "job")
        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)

    with pytest.raises(ClientDisconnect):
        run_coroutine(read())
    assert len(feed.dropped) == 1
