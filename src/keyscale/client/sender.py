"""Sends calls: in the caller's thread, or in an event loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx

from keyscale.address_proof import AddressNotProvenError, AsyncProvenTransport, Challenge, ProvenTransport
from keyscale.certificates import trusted_certificates

from .call import REQUEST_TIMEOUT_S, Call, Pages, Pause, Steps, Stream, refusal
from .errors import CaFileError, ClientError, ControlPlaneNotProvenError, ControlPlaneUnreachableError
from .event_stream import EventReader

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Generator, Iterator

    from .connection import Connection

T = TypeVar("T")

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
REPEAT_PAUSES_S = (0.2, 1.0, 2.0)
"""The pauses before a request whose answer was lost is repeated."""
STREAM_OPENINGS_MAX = 5
"""How often a stream is opened in a row without a message."""
STREAM_SILENCE_S = 60.0
"""The server writes at least a comment every 10 s."""


class Sender:
    """Sends calls in the caller's thread.

    Args:
        connection: The control plane's address and token.
        transport: Sends the requests; None: over the network.
    """

    def __init__(self, connection: Connection, transport: httpx.BaseTransport | None = None) -> None:
        self.connection = connection
        self._http = httpx.Client(transport=transport or _proving(connection), **_options(connection))

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def run(self, steps: Call[T] | Steps[T]) -> T:
        """Carries out steps, and returns what they return."""
        if isinstance(steps, Call):
            return self._send(steps)
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                answer = self._send(step)

    def pages(self, pages: Pages[T]) -> Iterator[T]:
        """Yields the items of all parts of a list."""
        call: Call[Any] | None = pages.call
        while call is not None:
            answer = self._send(call)
            yield from pages.items(answer)
            call = pages.after(answer)

    def stream(self, stream: Stream[T]) -> Iterator[T]:
        """Yields the items of a stream.

        A stream that breaks is opened again.
        """
        openings = _openings(self.connection)
        pause_s = next(openings)
        while True:
            time.sleep(pause_s)
            reader, lost = EventReader(), None
            try:
                with self._http.stream(stream.call.method, stream.call.path, **_stream_options(stream.call)) as answer:
                    if not answer.is_success:
                        answer.read()
                        raise refusal(answer)
                    for line in answer.iter_lines():
                        event = reader.feed(line)
                        if event is None:
                            continue
                        openings = _openings(self.connection)
                        next(openings)
                        item = stream.read(event.name, event.data)
                        yield item
                        if stream.is_last(item):
                            return
            except httpx.TransportError as error:
                lost = error
            pause_s = openings.send((reader, lost))

    def _send(self, call: Call[T]) -> T:
        attempts = _attempts(call, self.connection)
        pause_s = next(attempts)
        while True:
            time.sleep(pause_s)
            try:
                return call.read(self._http.request(call.method, call.path, **call.options()))
            except httpx.TransportError as error:
                pause_s = attempts.send(error)


class AsyncSender:
    """Sends calls in an event loop.

    Args:
        connection: The control plane's address and token.
        transport: Sends the requests; None: over the network.
    """

    def __init__(self, connection: Connection, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.connection = connection
        self._http = httpx.AsyncClient(transport=transport or _async_proving(connection), **_options(connection))

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def run(self, steps: Call[T] | Steps[T]) -> T:
        """Carries out steps, and returns what they return."""
        if isinstance(steps, Call):
            return await self._send(steps)
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                answer = await self._send(step)

    async def pages(self, pages: Pages[T]) -> AsyncIterator[T]:
        """Yields the items of all parts of a list."""
        call: Call[Any] | None = pages.call
        while call is not None:
            answer = await self._send(call)
            for item in pages.items(answer):
                yield item
            call = pages.after(answer)

    async def stream(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Yields the items of a stream.

        A stream that breaks is opened again.
        """
        openings = _openings(self.connection)
        pause_s = next(openings)
        while True:
            await asyncio.sleep(pause_s)
            reader, lost = EventReader(), None
            opening = self._http.stream(stream.call.method, stream.call.path, **_stream_options(stream.call))
            try:
                async with opening as answer:
                    if not answer.is_success:
                        await answer.aread()
                        raise refusal(answer)
                    async for line in answer.aiter_lines():
                        event = reader.feed(line)
                        if event is None:
                            continue
                        openings = _openings(self.connection)
                        next(openings)
                        item = stream.read(event.name, event.data)
                        yield item
                        if stream.is_last(item):
                            return
            except httpx.TransportError as error:
                lost = error
            pause_s = openings.send((reader, lost))

    async def _send(self, call: Call[T]) -> T:
        attempts = _attempts(call, self.connection)
        pause_s = next(attempts)
        while True:
            await asyncio.sleep(pause_s)
            try:
                return call.read(await self._http.request(call.method, call.path, **call.options()))
            except httpx.TransportError as error:
                pause_s = attempts.send(error)


def _attempts(call: Call[Any], connection: Connection) -> Generator[float, httpx.TransportError, None]:
    """Yields the pause before each attempt of a call.

    It takes the error that ended the attempt.

    Only a lost answer lets a call be repeated: where nothing listens at first, the address is wrong, or nothing runs.
    While a call is repeated, the control plane may be starting again.
    """
    error = yield 0.0
    if call.can_be_repeated and not isinstance(error, (httpx.ConnectError, httpx.TimeoutException)):
        for pause_s in REPEAT_PAUSES_S:
            if isinstance(error, AddressNotProvenError):
                break
            error = yield pause_s
    raise unreachable(connection, error) from error


def _openings(connection: Connection) -> Generator[float, tuple[EventReader, httpx.TransportError | None], None]:
    """Yields the pause before each opening of a stream.

    It takes how the opening before ended.

    A stream that ends without an error was ended by its server, which wants the client to come back.
    """
    reader, error = yield 0.0
    for _ in range(STREAM_OPENINGS_MAX):
        if isinstance(error, AddressNotProvenError):
            break
        reader, error = yield reader.reconnect_s
    if error is None:
        raise ControlPlaneUnreachableError(f"the control plane at {connection.url} ends the stream without a message")
    raise unreachable(connection, error) from error


def unreachable(connection: Connection, error: httpx.TransportError) -> ClientError:
    """Returns the error of a request without an answer."""
    if isinstance(error, AddressNotProvenError):
        return ControlPlaneNotProvenError(str(error))
    reason = str(error) or type(error).__name__
    return ControlPlaneUnreachableError(f"no answer from the control plane at {connection.url}: {reason}")


def _stream_options(call: Call[Any]) -> dict[str, Any]:
    return replace(call, timeout_s=STREAM_SILENCE_S).options()


def _options(connection: Connection) -> dict[str, Any]:
    return {
        "base_url": connection.url,
        "headers": {"Authorization": f"Bearer {connection.token}"} if connection.token else {},
        "timeout": REQUEST_TIMEOUT_S,
        # A proxy for the internet must not be used for this machine.
        "trust_env": urlsplit(connection.url).hostname not in LOOPBACK_HOSTS,
        "verify": _trusted(connection),
    }


def _proving(connection: Connection) -> httpx.BaseTransport | None:
    challenge = _challenge(connection)
    if challenge is None:
        return None
    return ProvenTransport(challenge, httpx.HTTPTransport(verify=_trusted(connection), trust_env=False))


def _async_proving(connection: Connection) -> httpx.AsyncBaseTransport | None:
    challenge = _challenge(connection)
    if challenge is None:
        return None
    return AsyncProvenTransport(challenge, httpx.AsyncHTTPTransport(verify=_trusted(connection), trust_env=False))


def _challenge(connection: Connection) -> Challenge | None:
    key = connection.proof_key
    return None if key is None else Challenge(connection.url, "/proofs/home", key)


def _trusted(connection: Connection) -> ssl.SSLContext:
    try:
        return trusted_certificates(connection.ca_file)
    except OSError as error:
        reason = error.strerror or "it holds no PEM certificate"
        raise CaFileError(f"--ca-file, KEYSCALE_CA_FILE: {connection.ca_file} cannot be used: {reason}") from error
