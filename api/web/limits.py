"""ASGI middleware that refuses invalid requests before their bodies are read.

It refuses foreign Host headers, unfit paths and oversize bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from keyscale.jobs.protocol.storable_text import is_storable
from keyscale.vocabulary import REQUEST_BYTES_MAX

from ..errors import BodyTooLargeError, HostNotAllowedError, RouteNotFoundError
from ..problem import problem
from ..settings import LOOPBACK_HOSTS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..settings import Settings

CHECKPOINT_BYTES_MAX = 32 << 20  # a report of a checkpoint has a row per operator and subtask, with its key groups
HEARTBEAT_BYTES_MAX = 4 << 20  # it is stored every quarter of a second, and reading it delays other drivers
DIAGNOSTIC_BYTES_MAX = 16 << 20
MULTIPART_OVERHEAD_BYTES = 64 << 10
FORM_BYTES_MAX = 16 << 10  # the login form, which every client may send
_REPORT_BYTES_MAX = {
    "/driver/checkpoints": CHECKPOINT_BYTES_MAX,
    "/driver/diagnostics": DIAGNOSTIC_BYTES_MAX,
    "/driver/heartbeat": HEARTBEAT_BYTES_MAX,
}


class RequestLimits:
    """Checks the Host header, the path's characters and the body's size."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        advertised = _host_name(urlsplit(settings.control_url).netloc)
        self._hosts = LOOPBACK_HOSTS | settings.allowed_hosts | {settings.host.lower(), advertised}
        self._upload_bytes_max = settings.artifact_bytes_max + MULTIPART_OVERHEAD_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts = {_host_name(value.decode("latin-1")) for name, value in scope["headers"] if name == b"host"}
        if not hosts or hosts - self._hosts:
            await problem(HostNotAllowedError("the Host header names another host"))(scope, receive, send)
            return
        if not is_storable(scope["path"]):
            await problem(RouteNotFoundError("the path holds a character that no name has"))(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            await problem(BodyTooLargeError(f"at most {limit} bytes are accepted here"))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:  # a chunked body does not announce its length
                raise HTTPException(413)
            return message

        await self._app(scope, counted, send)

    def _limit(self, path: str) -> int:
        if path == "/v1/artifacts":
            return self._upload_bytes_max
        if path.startswith("/ui/"):
            return FORM_BYTES_MAX
        return _REPORT_BYTES_MAX.get(path, REQUEST_BYTES_MAX)


def _host_name(header: str) -> str:
    """Returns the name of a Host header without its port.

    Brackets of IPv6 are kept.
    """
    host = header.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
