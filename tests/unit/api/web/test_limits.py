"""Foreign hosts and oversize bodies are refused before anything reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.exceptions import HTTPException

from keyscale.api.settings import Settings
from keyscale.api.web.limits import (
    CHECKPOINT_BYTES_MAX,
    DIAGNOSTIC_BYTES_MAX,
    HEARTBEAT_BYTES_MAX,
    MULTIPART_OVERHEAD_BYTES,
    RequestLimits,
)
from keyscale.vocabulary import REQUEST_BYTES_MAX
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send

OK, WRONG_HOST, TOO_LARGE = 200, 421, 413
UPLOAD_BYTES_MAX = 5_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path,
        host="Own.Example",
        allowed_hosts=frozenset({"other.example", "[2001:db8::1]"}),
        artifact_bytes_max=UPLOAD_BYTES_MAX,
    )


def send(
    settings: Settings,
    *chunks: bytes,
    host: bytes | tuple[bytes, ...] | None = b"localhost",
    length: bytes | None = None,
    path: str = "/v1/jobs",
    kind: str = "http",
) -> int:
    """Sends a request through the limits to an application that reads all of it; returns the status of the answer."""
    statuses: list[int] = []
    bodies = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    bodies.append({"type": "http.request"})

    async def application(_scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": OK})

    async def receive() -> Message:
        return bodies.pop(0)

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"accept", b"evil.example")]
    hosts = host if isinstance(host, tuple) else () if host is None else (host,)
    headers += [(b"host", each) for each in hosts]
    headers += [(b"content-length", length)] if length is not None else []
    scope: dict[str, Any] = {"type": kind, "path": path, "headers": headers}
    try:
        run_coroutine(RequestLimits(application, settings)(scope, receive, answer))
    except HTTPException as refused:
        return refused.status_code
    assert len(statuses) == 1
    return statuses[0]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"localhost", OK),
        (b"LocalHost:8080", OK),
        (b" 127.0.0.1:1 ", OK),
        (b"[::1]:8080", OK),
        (b"[::1]", OK),
        (b"own.example:443", OK),
        (b"other.example", OK),
        (b"[2001:DB8::1]:9", OK),
        (b"[2001:db8::2]", WRONG_HOST),
        (b"evil.example", WRONG_HOST),
        (b"localhost.evil.example:80", WRONG_HOST),
        (b"evil.example:localhost", WRONG_HOST),
        (b"\xe4", WRONG_HOST),
        (b"", WRONG_HOST),
        (None, WRONG_HOST),
    ],
)
def test_a_host_is_ours_by_its_name_whatever_its_port_and_case(
    settings: Settings, host: bytes | None, status: int
) -> None:
    assert send(settings, host=host) == status


@pytest.mark.parametrize("foreign", [(b"evil.example", b"localhost"), (b"localhost", b"evil.example")])
def test_of_several_hosts_each_has_to_be_ours(settings: Settings, foreign: tuple[bytes, ...]) -> None:
    assert send(settings, host=foreign) == WRONG_HOST
    assert send(settings, host=(b"localhost", b"own.example")) == OK


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/v1/jobs", REQUEST_BYTES_MAX),
        ("/driver", REQUEST_BYTES_MAX),
        ("/driver/checkpoints", CHECKPOINT_BYTES_MAX),
        ("/driver/diagnostics", DIAGNOSTIC_BYTES_MAX),
        ("/driver/heartbeat", HEARTBEAT_BYTES_MAX),
        ("/v1/artifacts", UPLOAD_BYTES_MAX + MULTIPART_OVERHEAD_BYTES),
    ],
)
def test_a_body_has_the_limit_of_its_route_whether_it_is_announced_or_not(
    settings: Settings, path: str, limit: int
) -> None:
    assert send(settings, path=path, length=b"%d" % limit) == OK
    assert send(settings, path=path, length=b"%d" % (limit + 1)) == TOO_LARGE
    half = bytes(limit // 2)
    assert send(settings, half, half, path=path) == OK
    assert send(settings, half, half, b"xx", path=path) == TOO_LARGE


@pytest.mark.parametrize("length", [b"-1", b"many", b"1e3"])
def test_a_length_that_is_no_number_is_refused(settings: Settings, length: bytes) -> None:
    assert send(settings, length=length) == TOO_LARGE


def test_what_is_no_request_goes_through_unchecked(settings: Settings) -> None:
    assert send(settings, host=None, kind="lifespan") == OK


@pytest.mark.parametrize("path", ["/v1/jobs/\x00", "/v1/jobs/\ud800"])
def test_a_path_with_a_character_that_no_name_has_leads_nowhere(settings: Settings, path: str) -> None:
    assert send(settings, path=path) == 404
