"""Proofs that an address still belongs to its control plane.

A control plane's address outlives the control plane: any program of the host can listen there afterwards. A client
therefore sends a nonce on each new connection, without a token. The control plane answers with an HMAC-SHA256 of the
nonce and its own address, under a key that only the client and the control plane know. The proof covers the address, so
that a proof of another address is worthless.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx

if TYPE_CHECKING:
    from collections.abc import Mapping

PROOF_BYTES_MAX = 10_000
_CONNECTIONS_TRIED = 3


class AddressNotProvenError(httpx.TransportError):
    """The program at an address has not proved who it is.

    Attributes:
        status: The status of its answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Challenge:
    """A question that only the right control plane can answer.

    Attributes:
        url: The control plane's address, as the control plane names it.
        path: The route of the proof.
        key: What the client and the control plane know.
        query: Further parameters of the route, besides the nonce.
        subject: What the proof covers besides the nonce and the address.
    """

    url: str
    path: str
    key: str = field(repr=False)
    query: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""

    def ask(self, transport: httpx.BaseTransport, extensions: Mapping[str, Any]) -> None:
        """Asks on a new connection, which later requests use.

        Raises:
            AddressNotProvenError: The answer is wrong; its connection is closed.
        """
        nonce = secrets.token_hex(16)
        response = transport.handle_request(self._request(nonce, extensions))
        is_proven = False
        try:
            self._check(nonce, response, _given_proof(response))
            is_proven = True
        finally:
            if not is_proven:
                response.extensions["network_stream"].close()  # before another thread can use the connection
            response.close()

    async def ask_in_loop(self, transport: httpx.AsyncBaseTransport, extensions: Mapping[str, Any]) -> None:
        """Asks on a new connection in an event loop.

        Raises:
            AddressNotProvenError: The answer is wrong; its connection is closed.
        """
        nonce = secrets.token_hex(16)
        response = await transport.handle_async_request(self._request(nonce, extensions))
        is_proven = False
        try:
            self._check(nonce, response, await _given_proof_in_loop(response))
            is_proven = True
        finally:
            if not is_proven:
                await response.extensions["network_stream"].aclose()  # before another task can use the connection
            await response.aclose()

    def _request(self, nonce: str, extensions: Mapping[str, Any]) -> httpx.Request:
        address = f"{self.url}{self.path}?{urlencode({**self.query, 'nonce': nonce})}"
        return httpx.Request("GET", address, extensions=dict(extensions))

    def _check(self, nonce: str, response: httpx.Response, given: str) -> None:
        expected = prove(self.key, nonce, self.url, self.subject)
        if not hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode()):
            raise AddressNotProvenError(
                f"the program at {self.url} has not proved that it is the control plane", response.status_code
            )


class ProvenTransport(httpx.BaseTransport):
    """Sends requests only on connections that have answered a challenge.

    Args:
        challenge: The challenge of each new connection.
        transport: Opens and keeps the connections.
    """

    def __init__(self, challenge: Challenge, transport: httpx.HTTPTransport) -> None:
        self._challenge = challenge
        self._transport = transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request.

        Raises:
            AddressNotProvenError: No connection has answered the challenge.
        """
        asked = {name: value for name, value in request.extensions.items() if name == "timeout"}
        request.extensions = {**request.extensions, "trace": _open_nothing}
        for _ in range(_CONNECTIONS_TRIED):
            try:
                return self._transport.handle_request(request)
            except _ConnectionNeeded:
                self._challenge.ask(self._transport, asked)
        raise AddressNotProvenError(f"{self._challenge.url} closes each connection after one answer")

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()


class AsyncProvenTransport(httpx.AsyncBaseTransport):
    """Sends requests of an event loop on proven connections.

    Args:
        challenge: The challenge of each new connection.
        transport: Opens and keeps the connections.
    """

    def __init__(self, challenge: Challenge, transport: httpx.AsyncHTTPTransport) -> None:
        self._challenge = challenge
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request.

        Raises:
            AddressNotProvenError: No connection has answered the challenge.
        """
        asked = {name: value for name, value in request.extensions.items() if name == "timeout"}
        request.extensions = {**request.extensions, "trace": _open_nothing_in_loop}
        for _ in range(_CONNECTIONS_TRIED):
            try:
                return await self._transport.handle_async_request(request)
            except _ConnectionNeeded:
                await self._challenge.ask_in_loop(self._transport, asked)
        raise AddressNotProvenError(f"{self._challenge.url} closes each connection after one answer")

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._transport.aclose()


def prove(key: str, nonce: str, url: str, subject: str = "") -> str:
    """Returns the proof of knowing a key, for one address.

    Args:
        key: The key.
        nonce: The client's number.
        url: The address of the control plane that proves it.
        subject: What the proof covers besides.
    """
    text = f"{nonce} {url} {subject}" if subject else f"{nonce} {url}"
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


class _ConnectionNeeded(Exception):  # noqa: N818 - a signal, caught in this module
    """A request would have to open a connection."""


def _open_nothing(event: str, _: Mapping[str, Any]) -> None:
    if event.startswith("connection.connect_"):
        raise _ConnectionNeeded


async def _open_nothing_in_loop(event: str, details: Mapping[str, Any]) -> None:
    _open_nothing(event, details)


def _given_proof(response: httpx.Response) -> str:
    content = b""
    if not response.is_success or not isinstance(response.stream, httpx.SyncByteStream):
        return ""
    for chunk in response.stream:  # which leaves the connection in use, unlike the response's own methods
        content += chunk
        if len(content) > PROOF_BYTES_MAX:
            return ""
    return _proof_in(content)


async def _given_proof_in_loop(response: httpx.Response) -> str:
    content = b""
    if not response.is_success or not isinstance(response.stream, httpx.AsyncByteStream):
        return ""
    async for chunk in response.stream:
        content += chunk
        if len(content) > PROOF_BYTES_MAX:
            return ""
    return _proof_in(content)


def _proof_in(content: bytes) -> str:
    try:
        answer = json.loads(content)
    except ValueError:
        return ""
    proof = answer.get("proof") if isinstance(answer, dict) else None
    return proof if isinstance(proof, str) else ""
