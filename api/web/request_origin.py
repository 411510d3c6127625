"""ASGI middleware that identifies, limits and logs each request.

It gives each request an id and its sender's address, limits its sender, and logs its end.

It also hands answers to the web server in small parts.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders

from keyscale.db.repositories.events import ORIGIN, EventOrigin

from ..errors import RateLimitedError
from ..problem import problem
from .line_limit import LineLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..access.rates import Rates
    from ..control_plane.own_metrics import OwnMetrics

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-ID"
PART_BYTES_MAX = 64 << 10
_CLIENTS_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")


class RequestOrigin:
    """Sets `ORIGIN`, which events and log lines name.

    A client, or a proxy before the control plane, may choose the id with the header X-Request-ID.
    """

    def __init__(self, app: ASGIApp, rates: Rates, metrics: OwnMetrics) -> None:
        self._app = app
        self._rates = rates
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        chosen = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        client = scope.get("client")
        origin = EventOrigin(
            request_id=chosen if _CLIENTS_ID.fullmatch(chosen) else uuid.uuid4().hex,
            address=client[0] if client else "unknown",
        )
        # Never reset: the server answers each request in a separate context, and a failure is logged after this.
        ORIGIN.set(origin)
        began_s, status, is_stream = time.monotonic(), 500, False

        async def send_with_id(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = origin.request_id
                is_stream = headers.get("content-type", "").startswith("text/event-stream")
            for part in _parts(message):
                await send(part)

        try:
            if (wait_s := self._rates.per_address.take(origin.address)) > 0:
                refusal = RateLimitedError("too many requests came from this address", wait_s)
                await problem(refusal)(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        finally:
            duration_s = time.monotonic() - began_s
            self._metrics.note_request(scope, status, duration_s, is_stream=is_stream)
            _log(scope, status, origin, duration_s)


def limit_lines_of_refusals() -> None:
    """Omits log lines when very many requests are refused or invalid.

    Invalid requests are not HTTP.
    """
    logger.addFilter(LineLimit(lambda record: 400 <= getattr(record, "status", 0) < 500))
    logging.getLogger("uvicorn.error").addFilter(LineLimit(lambda record: record.levelno == logging.WARNING))


class RequestIdFilter(logging.Filter):
    """Adds the id of the current request to log records, or `-`."""

    def filter(self, record: logging.LogRecord) -> bool:
        origin = ORIGIN.get()
        record.request_id = "-" if origin is None else origin.request_id
        return True


def _parts(message: Message) -> Iterator[Message]:
    """Yields the parts of a message.

    The web server waits after each part until the client has read the previous part.

    Without parts, it would copy a long answer as a whole, for each of any number of clients that never read it.
    """
    body = message.get("body", b"")
    for at in range(PART_BYTES_MAX, len(body), PART_BYTES_MAX):
        yield {**message, "body": body[at - PART_BYTES_MAX : at], "more_body": True}
    rest = max(0, len(body) - 1) // PART_BYTES_MAX * PART_BYTES_MAX
    yield {**message, "body": body[rest:]} if rest else message


def _log(scope: Scope, status: int, origin: EventOrigin, duration_s: float) -> None:
    # Pages and drivers read and report every second: successful requests without changes are not logged.
    path = scope.get("path_params", {})
    is_routine = scope["method"] in {"GET", "HEAD"} or scope["path"].startswith("/driver/")
    logger.log(
        logging.DEBUG if is_routine and status < 400 else logging.INFO,
        "%s %s: %d in %.0f ms, from %s, by %s",
        scope["method"],
        quote(scope["path"]),
        status,
        duration_s * 1000,
        origin.address,
        origin.actor or "nobody",
        extra={"status": status, "job": path.get("job_id"), "operation": path.get("operation_id")},
    )
