"""Answers are handed to the web server in small parts, and are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.datastructures import Headers

from keyscale.api.access.rates import Rates
from keyscale.api.control_plane.own_metrics import OwnMetrics
from keyscale.api.web.request_origin import PART_BYTES_MAX, REQUEST_ID_HEADER, RequestOrigin
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

RATES = Rates(per_user=0, per_address=0, failures_per_minute=0)


def sent(bodies: list[bytes], request_id: str = "") -> list[Message]:
    """The messages that the web server gets of an answer."""
    messages: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left, body in reversed(list(enumerate(reversed(bodies)))):
            await send({"type": "http.response.body", "body": body, "more_body": left > 0})

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(REQUEST_ID_HEADER.lower().encode(), request_id.encode())],
    }
    scope["client"] = ("127.0.0.1", 1)
    run_coroutine(RequestOrigin(app, RATES, OwnMetrics())(scope, receive, send))
    return messages


@pytest.mark.parametrize(("given", "is_kept"), [("request-of-mine-1", True), ("two words", False), ("", False)])
def test_an_answer_has_the_id_of_its_request(given: str, is_kept: bool) -> None:
    headers = Headers(raw=sent([b""], given)[0]["headers"])
    assert (headers[REQUEST_ID_HEADER] == given) is is_kept
    assert headers[REQUEST_ID_HEADER]


@pytest.mark.parametrize("size", [0, 1, PART_BYTES_MAX - 1, PART_BYTES_MAX, PART_BYTES_MAX + 1, 5 * PART_BYTES_MAX])
def test_a_long_answer_is_handed_over_in_parts_and_is_whole(size: int) -> None:
    whole = bytes(index % 251 for index in range(size))
    parts = sent([whole])[1:]
    assert b"".join(part["body"] for part in parts) == whole
    assert len(parts) == max(1, -(-size // PART_BYTES_MAX))
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]


def test_the_parts_of_a_stream_stay_in_order_and_only_the_last_one_ends_it() -> None:
    bodies = [b"a" * 10, b"b" * (PART_BYTES_MAX + 10), b"c"]
    parts = sent(bodies)[1:]
    assert [(len(part["body"]), part["more_body"]) for part in parts] == [
        (10, True),
        (PART_BYTES_MAX, True),
        (10, True),
        (1, False),
    ]
