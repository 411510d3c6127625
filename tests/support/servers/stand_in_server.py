"""A server that keeps what it was sent, and proves what it is told to prove."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from keyscale.address_proof import prove
from keyscale.jobs.protocol.control_address import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator


class StandInServer:
    """Answers a proof as the holder of a key, and every other request with one chosen status and body.

    Args:
        key: The key; None: it knows none, and answers a proof with 404.
        subject: What its proofs cover besides the address.
        port: Where it listens; 0: a free port.

    Attributes:
        proves_as: The address that its proofs cover; empty: its own one.
        hangs_up_after: The path after which it closes the connection without saying so.
        keeps_connections: Whether a connection serves several requests.
        requests: The method, path, credential and content of each request.
        lost_key: The key with which it proves that it has lost an attempt; None: it does not.
    """

    def __init__(self, key: str | None, subject: str = "", port: int = 0) -> None:
        self.key, self.subject, self.proves_as = key, subject, ""
        self.status, self.body, self.proof_status = 200, b"{}", 404
        self.keeps_connections, self.hangs_up_after = True, ""
        self.lost_key: str | None = None
        self.requests: list[tuple[str, str, str | None, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                outer.requests.append((self.command, parts.path, self.headers.get("Authorization"), content))
                status, body = outer.status, outer.body
                if "/proof" in parts.path:
                    status, body = outer.proof(parse_qs(parts.query)["nonce"][0])
                elif parts.path == "/driver/unknown":
                    status, body = outer.proof_of_loss(parse_qs(parts.query)["nonce"][0])
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if not outer.keeps_connections:
                    self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)
                self.close_connection |= parts.path == outer.hangs_up_after

            do_POST = do_GET  # noqa: N815 - the name that http.server calls

            def log_message(self, *_: object) -> None:
                """Tests need no access log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def asked(self) -> list[str]:
        """The paths of all requests."""
        return [path for _, path, _, _ in self.requests]

    @property
    def credentials(self) -> set[str]:
        """The credentials that it was sent."""
        return {credential for _, _, credential, _ in self.requests if credential is not None}

    def proof(self, nonce: str) -> tuple[int, bytes]:
        if self.key is None:
            return self.proof_status, b"{}"
        return 200, json.dumps({"proof": prove(self.key, nonce, self.proves_as or self.url, self.subject)}).encode()

    def proof_of_loss(self, nonce: str) -> tuple[int, bytes]:
        if self.lost_key is None:
            return 401, b"{}"
        return 200, json.dumps({"proof": prove(self.lost_key, nonce, self.proves_as or self.url, UNKNOWN)}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def stand_in_server(key: str | None = None, subject: str = "", port: int = 0) -> Iterator[StandInServer]:
    server = StandInServer(key, subject, port)
    try:
        yield server
    finally:
        server.close()
