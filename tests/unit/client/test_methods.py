"""Each scenario runs with both clients: what holds for threads holds for event loops."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from keyscale.client import AsyncKeyscale, Keyscale, OperationFailedError, RefusedError, WaitTimeoutError
from keyscale.client import sender as sender_module
from keyscale.client.errors import ChangesTooLargeError, ControlPlaneUnreachableError, UnexpectedAnswerError
from keyscale.client.nouns import operation_calls
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://control"
SECRET = {"name": "DATABASE", "labels": {"team": "travel"}, "is_set": True}
DAY = {"detail": "no such job", "code": "JOB_NOT_FOUND", "title": "No such job", "advice": "List them."}
ARTIFACT = {
    "id": "5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
    "name": "departures",
    "version": 1,
    "filename": "departures.py",
    "kind": "PYTHON",
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "size_bytes": 2411,
    "created_at_ms": 1,
    "uploaded_by": None,
    "used_by": [],
}

Handler = Callable[[httpx.Request], httpx.Response]
Perform = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "_trusted", lambda _: False)  # to read certificates takes longer than a test
    monkeypatch.setattr(sender_module, "REPEAT_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(operation_calls, "POLL_S", 0.0)


@pytest.fixture(params=["threads", "event loop"])
def perform(request: pytest.FixtureRequest) -> Perform:
    """Performs one method with one of the clients: its answer, or the list of what it yields."""

    def in_thread(handler: Handler, noun: str, method: str, *arguments: Any, **options: Any) -> Any:
        with Keyscale(URL, "secret", transport=httpx.MockTransport(handler)) as client:
            answer = getattr(getattr(client, noun), method)(*arguments, **options)
            return list(answer) if isinstance(answer, Iterator) else answer

    def in_loop(handler: Handler, noun: str, method: str, *arguments: Any, **options: Any) -> Any:
        async def performed() -> Any:
            async with AsyncKeyscale(URL, "secret", transport=httpx.MockTransport(handler)) as client:
                answer = getattr(getattr(client, noun), method)(*arguments, **options)
                if isinstance(answer, AsyncIterator):
                    return [each async for each in answer]
                assert isinstance(answer, Awaitable)
                return await answer

        return run_coroutine(performed())

    return in_thread if request.param == "threads" else in_loop


def test_an_answer_is_a_model_of_the_api(perform: Perform) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.raw_path) == ("PUT", b"/v1/secrets/A%2FB/labels")
        assert request.headers["Authorization"] == "Bearer secret"
        assert json.loads(request.content) == {"labels": {"team": "travel"}}
        return httpx.Response(200, json=SECRET)

    answer = perform(handle, "secrets", "label", "A/B", labels={"team": "travel"})
    assert (answer.name, answer.labels, answer.is_set) == ("DATABASE", {"team": "travel"}, True)


def test_a_refusal_has_its_code_message_advice_and_status(perform: Perform) -> None:
    with pytest.raises(RefusedError, match="no such job") as refused:
        perform(lambda _: httpx.Response(404, json=DAY), "logs", "get", "flights")
    assert (refused.value.code, refused.value.status, refused.value.advice) == ("JOB_NOT_FOUND", 404, "List them.")
    assert (RefusedError.code, RefusedError.advice) != (refused.value.code, refused.value.advice)


def test_an_answer_of_another_program_is_named(perform: Perform) -> None:
    for answer in (httpx.Response(200, json={"hello": "world"}), httpx.Response(200, text="hello")):
        with pytest.raises(UnexpectedAnswerError):
            perform(lambda _, answer=answer: answer, "artifacts", "get", "5f0c")
    with pytest.raises(UnexpectedAnswerError, match="502 Bad Gateway"):
        perform(lambda _: httpx.Response(502, text="hello"), "artifacts", "get", "5f0c")


def test_a_list_reads_its_parts_one_after_the_other(perform: Perform) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.params["limit"] == "1"
        after = int(request.url.params.get("after", "0"))
        part = {"artifacts": [{**ARTIFACT, "version": after + 1}], "next": str(after + 1) if after < 2 else None}
        return httpx.Response(200, json=part)

    assert [each.version for each in perform(handle, "artifacts", "list", limit=1)] == [1, 2, 3]


def test_a_list_of_one_kind_of_events_repeats_its_parameter(perform: Perform) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.params.multi_items() == [("kind", "JOB_CREATED"), ("kind", "JOB_DELETED")]
        return httpx.Response(200, json={"events": [], "next": None})

    assert perform(handle, "events", "list", kind=["JOB_CREATED", "JOB_DELETED"]) == []


def test_a_program_is_checked_with_the_given_settings(perform: Perform) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/v1/artifacts/5f0c/check")
        assert json.loads(request.content) == {"parallelism": 2, "parameters": {"key": {"secret": "A"}}}
        answer = {"valid": True, "failure": None, "operators": [], "sources": [{"uid": "in", "kind": "kafka"}]}
        return httpx.Response(200, json={**answer, "sinks": []})

    answer = perform(handle, "artifacts", "check", "5f0c", parallelism=2, parameters={"key": {"secret": "A"}})
    assert (answer.valid, answer.sources[0].kind) == (True, "kafka")


def test_an_upload_sends_the_file(perform: Perform, tmp_path: Path) -> None:
    (tmp_path / "departures.py").write_bytes(b"print(1)\n")

    def handle(request: httpx.Request) -> httpx.Response:
        assert b'filename="departures.py"' in request.content
        assert b"print(1)\n" in request.content
        assert b'name="name"\r\n\r\nother' in request.content
        return httpx.Response(201, json=ARTIFACT)

    assert perform(handle, "artifacts", "upload", tmp_path / "departures.py", name="other").version == 1


class Losing:
    """A server that takes requests, and loses the first answers."""

    def __init__(self, lost: int, answer: httpx.Response) -> None:
        self.lost, self.answer, self.requests = lost, answer, list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if len(self.requests) <= self.lost:
            raise httpx.RemoteProtocolError("the server closed the connection without an answer")
        return self.answer


def test_a_read_is_repeated_after_a_lost_answer(perform: Perform) -> None:
    losing = Losing(2, httpx.Response(200, json=ARTIFACT))
    assert perform(losing, "artifacts", "get", "5f0c").version == 1
    assert len(losing.requests) == 3


def test_a_read_is_not_repeated_for_ever(perform: Perform) -> None:
    losing = Losing(100, httpx.Response(200, json=ARTIFACT))
    with pytest.raises(ControlPlaneUnreachableError, match="closed the connection"):
        perform(losing, "artifacts", "get", "5f0c")
    assert len(losing.requests) == 3


def test_a_request_without_an_id_is_sent_once(perform: Perform) -> None:
    losing = Losing(1, httpx.Response(204))
    with pytest.raises(ControlPlaneUnreachableError):
        perform(losing, "artifacts", "delete", "5f0c")
    assert len(losing.requests) == 1


def test_a_post_by_path_is_sent_once() -> None:
    losing = Losing(1, httpx.Response(200, json={}))
    with (
        Keyscale(URL, "secret", transport=httpx.MockTransport(losing)) as client,
        pytest.raises(ControlPlaneUnreachableError),
    ):
        client.post("/v1/tokens", {})
    assert len(losing.requests) == 1


def test_a_request_with_an_id_is_repeated_with_the_same_id(perform: Perform) -> None:
    losing = Losing(1, httpx.Response(404, json=DAY))
    with pytest.raises(RefusedError):
        perform(losing, "jobs", "savepoint", "flights")
    first, second = (json.loads(request.content) for request in losing.requests)
    assert first == second
    assert all(first.values())


def test_a_request_keeps_the_id_that_its_user_chooses(perform: Perform) -> None:
    losing = Losing(0, httpx.Response(404, json=DAY))
    with pytest.raises(RefusedError):
        perform(losing, "jobs", "savepoint", "flights", id="nightly")
    assert json.loads(losing.requests[0].content) == {"id": "nightly"}


def test_an_address_where_nothing_listens_is_asked_once(perform: Perform) -> None:
    asked = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise httpx.ConnectError("connection refused")

    with pytest.raises(ControlPlaneUnreachableError, match="connection refused"):
        perform(refuse, "artifacts", "get", "5f0c")
    assert len(asked) == 1


def operation(status: str, **fields: Any) -> dict[str, Any]:
    return {**OPERATION, "status": status, **fields}


def test_a_wait_ends_with_its_operation(perform: Perform) -> None:
    answers = [operation("IN_PROGRESS"), operation("IN_PROGRESS"), operation("COMPLETED")]
    answer = perform(lambda _: httpx.Response(200, json=answers.pop(0)), "operations", "wait", "nightly")
    assert (answer.status, answers) == ("COMPLETED", [])


def test_a_wait_for_an_operation_that_fails_says_why(perform: Perform) -> None:
    failed = operation("FAILED", **{FAILURE: {"code": "STORE_AWAY", "message": "the store does not answer"}})
    with pytest.raises(OperationFailedError, match="STORE_AWAY the store does not answer"):
        perform(lambda _: httpx.Response(200, json=failed), "operations", "wait", "nightly")


def test_a_wait_has_an_end(perform: Perform) -> None:
    with pytest.raises(WaitTimeoutError, match="after 0 s"):
        perform(
            lambda _: httpx.Response(200, json=operation("IN_PROGRESS")), "operations", "wait", "nightly", timeout_s=0
        )


def streamed(*events: tuple[str, Any]) -> httpx.Response:
    lines = [f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events]
    return httpx.Response(200, text="retry: 0\n\n: the stream lasts\n\n" + "".join(lines))


def test_a_stream_is_opened_again_until_its_operation_has_ended(perform: Perform) -> None:
    answers = [
        streamed(("operation", operation("IN_PROGRESS"))),
        streamed(),
        streamed(("operation", operation("IN_PROGRESS")), ("operation", operation("COMPLETED"))),
    ]
    found = perform(lambda _: answers.pop(0), "operations", "stream", "nightly")
    assert [each.status for each in found] == ["IN_PROGRESS", "IN_PROGRESS", "COMPLETED"]


def test_a_stream_that_brings_messages_is_opened_again_however_often(perform: Perform) -> None:
    count = sender_module.STREAM_OPENINGS_MAX + 2
    answers = [streamed(("operation", operation("IN_PROGRESS"))) for _ in range(count)]
    answers.append(streamed(("operation", operation("COMPLETED"))))
    found = perform(lambda _: answers.pop(0), "operations", "stream", "nightly")
    assert [each.status for each in found] == ["IN_PROGRESS"] * count + ["COMPLETED"]


def test_a_stream_outlives_a_lost_connection(perform: Perform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyscale.client.event_stream.RECONNECT_S", 0.0)
    gone = ("gone", {})
    change = ("change", {"at_ms": 5, "topics": ["job"], "job_ids": ["a"]})
    losing = Losing(2, streamed(change, gone))
    found = perform(losing, "jobs", "stream", "flights")
    assert [(each.name, each.topics, each.job_ids) for each in found] == [
        ("change", ("job",), ("a",)),
        ("gone", (), ()),
    ]
    with pytest.raises(ControlPlaneUnreachableError):
        perform(Losing(100, streamed(change)), "jobs", "stream", "flights")


def test_a_refused_stream_raises_the_refusal(perform: Perform) -> None:
    with pytest.raises(RefusedError, match="no such job"):
        perform(lambda _: httpx.Response(404, json=DAY), "jobs", "stream", "flights")


OPERATION = {"id": "nightly", "job_id": "0d3b", "kind": "SAVEPOINT", "requested_at_ms": 1, "ended_at_ms": None}
FAILURE = "failure"


@pytest.mark.parametrize(
    ("path", "query", "sent"),
    [
        ("/v1/jobs?label=a%3D1&label=b", {}, b"label=a%3D1&label=b"),
        ("/v1/jobs?label=a", {"limit": 2, "after": None}, b"label=a&limit=2"),
        ("/v1/jobs?limit=1", {"limit": 2}, b"limit=2"),
        ("/v1/jobs", {}, b""),
    ],
)
def test_a_query_in_a_path_is_sent(path: str, query: dict[str, Any], sent: bytes) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.query == sent
        return httpx.Response(200, json={})

    with Keyscale(URL, "secret", transport=httpx.MockTransport(handle)) as client:
        assert client.get(path, **query) == {}


@pytest.mark.parametrize(
    ("changes", "key", "complaint"),
    [(10_001, "ada", "10,001 changes, and one request takes at most 10,000"), (6_000, "ä" * 100, "at most 1.0 MiB")],
)
def test_changes_beyond_one_request_are_not_sent(perform: Perform, changes: int, key: str, complaint: str) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"{len(request.content)} bytes are sent")

    change = {"operator": "o", "state": "s", "key": key, "value": 1}
    with pytest.raises(ChangesTooLargeError, match=complaint):
        perform(handle, "states", "change_all", "flights", changes=[change] * changes)


def test_changes_within_one_request_are_sent_with_an_id(perform: Perform) -> None:
    change = {"operator": "o", "state": "s", "key": "ada", "value": 1}
    answer = {"savepoint_id": "s", "checkpoint_id": 2, "location": "l", "changes": []}

    def handle(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        assert (len(sent["changes"]), sent["changes"][0], bool(sent["id"])) == (10_000, change, True)
        return httpx.Response(201, json=answer)

    assert perform(handle, "states", "change_all", "flights", [change] * 10_000).checkpoint_id == 2
