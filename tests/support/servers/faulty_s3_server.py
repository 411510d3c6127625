"""An S3 server that can be made to fail: away, slow, refusing, losing answers, or getting each request twice."""

from __future__ import annotations

import random
import threading
import time
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from tests.support.servers.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Fault(StrEnum):
    """The fault of a server that answers."""

    SLOW = "slow"
    ERRORS = "errors"
    LOST_ANSWERS = "lost answers"
    REPEATED_REQUESTS = "repeated requests"


FAULTY_SHARE = 0.25
SLOW_SECONDS = 0.5


class FaultyS3Server:
    """A server that keeps its data and its port while it is away.

    Attributes:
        fault: The fault that a part of all requests meet; None for none.
        hits: How many requests have met a fault.
    """

    def __init__(self, seed: int) -> None:
        self.fault: Fault | None = None
        self.hits = 0
        self._chance = random.Random(seed)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._port = 0
        self._server: BaseWSGIServer | None = None
        self.start()

    @property
    def server(self) -> S3Server:
        return S3Server(f"http://127.0.0.1:{self._port}")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which a process uses it."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.server.endpoint_url,
        }

    def start(self) -> None:
        self._server = make_server("127.0.0.1", self._port, self._answer, threaded=True)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="s3", daemon=True).start()

    def stop(self) -> None:
        """Goes away. Requests that come meanwhile are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self.fault is None or self._chance.random() > FAULTY_SHARE:
            return self._application(environ, start_response)  # type: ignore[no-any-return]  # moto has no types
        self.hits += 1
        if self.fault is Fault.SLOW:
            time.sleep(SLOW_SECONDS)
        elif self.fault is Fault.ERRORS:
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]
        else:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            list(self._application({**environ, "wsgi.input": BytesIO(body)}, lambda *_: lambda _: None))
            if self.fault is Fault.LOST_ANSWERS:
                raise ConnectionAbortedError("the answer is lost")
            environ["wsgi.input"] = BytesIO(body)
        return self._application(environ, start_response)  # type: ignore[no-any-return]
