"""A client repeats some requests whose answer does not come, after pauses, and says why it gives up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from keyscale.address_proof import AddressNotProvenError
from keyscale.client import AsyncKeyscale, Keyscale
from keyscale.client import sender as sender_module
from keyscale.client.change_event import ChangeEvent
from keyscale.client.connection import ADDRESS_FILE, TOKEN_FILE, Connection
from keyscale.client.errors import (
    ControlPlaneNotProvenError,
    ControlPlaneUnreachableError,
    OperationFailedError,
    WaitTimeoutError,
)
from keyscale.client.event_stream import EventReader
from keyscale.client.nouns import diagnostic_calls, operation_calls
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

URL = "http://control"
LOST = httpx.RemoteProtocolError("the answer was lost")
AWAY = httpx.ConnectError("connection refused")
SLOW = httpx.ReadTimeout("")
STRANGER = AddressNotProvenError("another program is at the address")
OPEN = '{"hello": 1}'


class Server:
    """Answers with given texts and errors, the last one for ever."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers, self.requests = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(200, text=answer)


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "_trusted", lambda _: False)  # to read them takes longer than a test


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a client makes, in seconds; none of them takes time."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(sender_module.time, "sleep", made.append)
    monkeypatch.setattr(sender_module.asyncio, "sleep", pause)
    return made


@pytest.fixture(params=["threads", "event loop"])
def perform(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Performs a method by path, or a method of a noun, with one of the clients."""

    def in_thread(server: Server, name: str, /, *arguments: Any, **options: Any) -> Any:
        with Keyscale(URL, "secret", transport=httpx.MockTransport(server)) as client:
            answer = _method(client, name)(*arguments, **options)
            return list(answer) if name.endswith("stream") else answer

    def in_loop(server: Server, name: str, /, *arguments: Any, **options: Any) -> Any:
        async def performed() -> Any:
            async with AsyncKeyscale(URL, "secret", transport=httpx.MockTransport(server)) as client:
                answer = _method(client, name)(*arguments, **options)
                return [each async for each in answer] if name.endswith("stream") else await answer

        return run_coroutine(performed())

    return in_thread if request.param == "threads" else in_loop


def _method(client: Any, name: str) -> Any:
    for part in name.split("."):
        client = getattr(client, part)
    return client


@pytest.mark.parametrize(
    ("answers", "paused", "error"),
    [
        ((OPEN,), [0.0], None),
        ((LOST, OPEN), [0.0, 0.2], None),
        ((LOST, AWAY, SLOW, OPEN), [0.0, 0.2, 1.0, 2.0], None),  # while it is repeated, it may be starting again
        ((LOST,), [0.0, 0.2, 1.0, 2.0], "at http://control: the answer was lost"),
        ((AWAY,), [0.0], "at http://control: connection refused"),
        ((SLOW,), [0.0], "at http://control: ReadTimeout"),
    ],
)
def test_a_read_is_repeated_after_longer_and_longer_pauses_unless_its_server_is_away(
    perform: Callable[..., Any],
    pauses: list[float],
    answers: tuple[str | Exception, ...],
    paused: list[float],
    error: str | None,
) -> None:
    if error is None:
        assert perform(Server(*answers), "get", "/v1/jobs") == {"hello": 1}
    else:
        with pytest.raises(ControlPlaneUnreachableError, match=error):
            perform(Server(*answers), "get", "/v1/jobs")
    assert pauses == paused


@pytest.mark.parametrize(("answers", "paused"), [((STRANGER,), [0.0]), ((LOST, STRANGER), [0.0, 0.2])])
def test_a_server_that_does_not_prove_itself_is_asked_no_more(
    perform: Callable[..., Any], pauses: list[float], answers: tuple[Exception, ...], paused: list[float]
) -> None:
    for name, path in (("get", "/v1/jobs"), ("jobs.stream", "flights")):
        pauses.clear()
        server = Server(*answers)
        with pytest.raises(ControlPlaneNotProvenError, match="another program is at the address"):
            perform(server, name, path)
        assert len(server.requests) == len(paused)
        assert name != "get" or pauses == paused


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize(
    ("name", "arguments", "options", "is_repeated", "minutes"),
    [
        ("get", ("/x",), {"limit": 1}, True, 1),
        ("put", ("/x", {"a": 1}), {}, True, 1),
        ("upload", ("/x",), {"filename": "a.py", "content": b"1", "name": "b"}, True, 1),
        ("post", ("/x", {"a": 1}), {"dry_run": True}, False, 10),
        ("patch", ("/x", {"a": 1}), {"if_match": "7"}, False, 10),
        ("delete", ("/x",), {"dry_run": True}, False, 10),
        ("request", ("GET", "/x"), {}, True, 10),
        ("request", ("POST", "/x", {"a": 1}), {"timeout_s": 60}, False, 1),
        ("operations.cancel", ("o",), {}, True, 1),
        ("operations.approve", ("o",), {}, True, 1),
        ("artifacts.delete", ("a",), {}, False, 1),
        ("jobs.delete", ("a",), {}, False, 1),
    ],
)
def test_only_a_request_that_changes_nothing_twice_is_repeated_and_then_it_is_the_same(  # noqa: PLR0917 - a table
    perform: Callable[..., Any],
    name: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    is_repeated: bool,
    minutes: int,
) -> None:
    server = Server(LOST)
    with pytest.raises(ControlPlaneUnreachableError):
        perform(server, name, *arguments, **options)
    assert len(server.requests) == (4 if is_repeated else 1)
    first, last = server.requests[0], server.requests[-1]
    assert (first.method, first.url, first.headers.get("If-Match")) == (last.method, last.url, options.get("if_match"))
    if name != "upload":  # its boundary is chosen by chance
        assert first.content == last.content
    assert first.extensions["timeout"]["read"] == 60 * minutes
    assert first.headers["Authorization"] == "Bearer secret"


MESSAGE = 'event: change\ndata: {"topics": ["job"], "job_ids": null}\n\n'
GONE = "event: gone\ndata: {}\n\n"


def test_a_stream_is_opened_again_after_the_pause_of_its_server(
    perform: Callable[..., Any], pauses: list[float]
) -> None:
    server = Server(f"retry: 1500\n\n{MESSAGE}", "retry: 300\n\n", "", LOST, MESSAGE + GONE + MESSAGE)
    found = perform(server, "jobs.stream", "flights")
    assert found == [ChangeEvent("change", ("job",), None), ChangeEvent("change", ("job",), None), ChangeEvent("gone")]
    assert pauses == [0.0, 1.5, 0.3, 2.0, 2.0]
    assert {each.extensions["timeout"]["read"] for each in server.requests} == {60.0}
    assert {(each.method, each.url.path) for each in server.requests} == {("GET", "/v1/jobs/flights/stream")}


@pytest.mark.parametrize(
    ("answer", "error"), [("retry: 0\n\n", "ends the stream without a message"), (LOST, "the answer was lost")]
)
def test_a_stream_without_messages_is_opened_five_times_more(
    perform: Callable[..., Any], pauses: list[float], answer: str | Exception, error: str
) -> None:
    server = Server(MESSAGE, answer)
    with pytest.raises(ControlPlaneUnreachableError, match=error):
        perform(server, "jobs.stream", "flights")
    assert len(server.requests) == len(pauses) == 1 + 5


def test_a_message_has_all_lines_of_its_data_and_a_name_of_its_own() -> None:
    reader = EventReader()
    lines = ["id: 7", "event:change", "data: [1,", "data:2]", ": a comment", "", "", "data: 3", "retry: soon", ""]
    found = [event for line in lines if (event := reader.feed(line)) is not None]
    assert [(each.name, each.data) for each in found] == [("change", [1, 2]), ("message", 3)]
    assert reader.reconnect_s == 2.0
    assert [ChangeEvent.of(name, {}).is_last() for name in ("change", "gone", "over", "away")] == [
        False,
        True,
        True,
        False,
    ]


def operation(status: str | None, **fields: Any) -> str:
    usual = {"id": "o", "job_id": "a", "kind": "SAVEPOINT", "requested_at_ms": 1, "ended_at_ms": None}
    return json.dumps({**usual, "status": status, **fields})


def diagnostic(status: str, **fields: Any) -> str:
    usual = {"id": "d", "job_id": "a", "attempt": 1, "kind": "THREAD_DUMP", "requested_at_ms": 1, "parts": []}
    usual |= {"requested_by": "ann", "until_ms": 2, "ended_at_ms": None, "arguments": {}, "failure": None}
    return json.dumps({**usual, "status": status, **fields})


FAILURE = {"code": "X", "message": "it broke", "advice": "mend it"}


@pytest.mark.parametrize(
    ("name", "arguments", "answer", "broken", "pause_s"),
    [
        (
            "operations.wait",
            ("o",),
            operation,
            ("FAILED", FAILURE, "SAVEPOINT ended as FAILED: X it broke"),
            operation_calls.POLL_S,
        ),
        (
            "diagnostics.wait",
            ("a", "d"),
            diagnostic,
            ("FAILED", FAILURE, "THREAD_DUMP failed: X it broke\nmend it"),
            diagnostic_calls.POLL_S,
        ),
    ],
)
def test_a_wait_asks_until_the_end_or_the_limit(  # noqa: PLR0917 - a table
    perform: Callable[..., Any],
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    arguments: tuple[str, ...],
    answer: Callable[..., str],
    broken: tuple[str, Any, str],
    pause_s: float,
) -> None:
    waiting = answer("IN_PROGRESS")
    assert perform(Server(waiting, waiting, answer("COMPLETED")), name, *arguments).status == "COMPLETED"
    assert [each for each in pauses if each] == [pause_s] * 2
    status, failure, message = broken
    with pytest.raises(OperationFailedError) as failed:
        perform(Server(waiting, answer(status, failure=failure)), name, *arguments)
    assert str(failed.value) == message
    moments = iter(range(100))
    for module in (operation_calls, diagnostic_calls):
        monkeypatch.setattr(module.time, "monotonic", lambda: next(moments))
    server = Server(waiting)
    with pytest.raises(WaitTimeoutError, match=r"after 3 s .* is still IN_PROGRESS"):
        perform(server, name, *arguments, timeout_s=3.0)
    assert len(server.requests) == 3


@pytest.mark.parametrize("client", [Keyscale, AsyncKeyscale])
def test_a_client_finds_its_control_plane_as_the_command_line_does(
    client: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in ("one", "two"):
        (tmp_path / home).mkdir()
        (tmp_path / home / ADDRESS_FILE).write_text(f"http://{home}\n")
        (tmp_path / home / TOKEN_FILE).write_text(f"token-of-{home}\n")
    for name in ("KEYSCALE_URL", "KEYSCALE_TOKEN", "KEYSCALE_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KEYSCALE_HOME", str(tmp_path / "one"))

    def found(*arguments: Any, **options: Any) -> tuple[str, str, str | None]:
        connection = client(*arguments, **options).connection
        return connection.url, connection.token, connection.ca_file and str(connection.ca_file)

    assert found() == ("http://one", "token-of-one", None)
    assert found(home=tmp_path / "two", ca_file="/given.pem") == ("http://two", "token-of-two", "/given.pem")
    monkeypatch.setenv("KEYSCALE_URL", "http://variable/")
    monkeypatch.setenv("KEYSCALE_TOKEN", "of-variable")
    monkeypatch.setenv("KEYSCALE_CA_FILE", "/variable.pem")
    assert found() == ("http://variable", "of-variable", "/variable.pem")
    assert found("http://given", "given", ca_file="/given.pem") == ("http://given", "given", "/given.pem")


@pytest.mark.parametrize(
    ("url", "uses_proxies"),
    [
        ("http://127.0.0.1:8080", False),
        ("http://localhost", False),
        ("https://[::1]:9", False),
        ("http://10.0.0.1", True),
        ("https://localhost.example.org", True),
    ],
)
def test_a_proxy_is_not_used_for_this_machine(url: str, uses_proxies: bool) -> None:
    options = sender_module._options(Connection(url, "t"))
    assert options["trust_env"] is uses_proxies
    assert (options["base_url"], options["headers"]) == (url, {"Authorization": "Bearer t"})
    assert sender_module._options(Connection(url, ""))["headers"] == {}


def test_only_the_address_of_a_home_has_to_be_proven() -> None:
    assert sender_module._challenge(Connection(URL, "t")) is None
    asked = sender_module._challenge(Connection(URL, "t", proof_key="the-key"))
    assert asked is not None
    assert (asked.url, asked.path, asked.key, asked.query, asked.subject) == (URL, "/proofs/home", "the-key", {}, "")
