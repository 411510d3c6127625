"""A token is sent only on a connection whose other end has proved who it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from keyscale.address_proof import (
    PROOF_BYTES_MAX,
    AddressNotProvenError,
    AsyncProvenTransport,
    Challenge,
    ProvenTransport,
    prove,
)
from tests.support.coroutines import run_coroutine
from tests.support.servers.stand_in_server import StandInServer, stand_in_server

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "the-key"
TOKEN = "Bearer secret"  # noqa: S105 - a test's own


@contextmanager
def client_of(server: StandInServer, key: str = KEY) -> Iterator[httpx.Client]:
    challenge = Challenge(server.url, "/proof", key)
    transport = ProvenTransport(challenge, httpx.HTTPTransport(trust_env=False))
    with httpx.Client(
        base_url=server.url, headers={"Authorization": TOKEN}, transport=transport, trust_env=False
    ) as client:
        yield client


def test_a_connection_is_proven_once_and_used_for_all_requests() -> None:
    with stand_in_server(KEY) as server, client_of(server) as client:
        for path in ("/a", "/b"):
            assert client.post(path, json={"x": 1}).status_code == 200
    assert [each[:3] for each in server.requests] == [
        ("GET", "/proof", None),
        ("POST", "/a", TOKEN),
        ("POST", "/b", TOKEN),
    ]


@pytest.mark.parametrize("key", [None, "another-key"])
def test_who_does_not_know_the_key_gets_no_token(key: str | None) -> None:
    with stand_in_server(key) as server, client_of(server) as client:
        for _ in range(2):
            with pytest.raises(AddressNotProvenError):
                client.get("/a")
    assert (set(server.asked), server.credentials) == ({"/proof"}, set())


def test_who_takes_the_place_of_a_control_plane_that_has_ended_gets_no_token() -> None:
    with stand_in_server(KEY) as server, client_of(server) as client:
        server.hangs_up_after = "/a"
        client.get("/a")
        server.close()
        server.close = lambda: None  # type: ignore[method-assign]
        with stand_in_server(None, port=server.port) as stranger:
            while not stranger.requests:  # the end of the old connection may not have arrived
                with pytest.raises(httpx.TransportError):
                    client.get("/a")
            assert (set(stranger.asked), stranger.credentials) == ({"/proof"}, set())
    assert server.credentials == {TOKEN}


def test_a_proof_of_another_address_or_subject_is_not_believed() -> None:
    with stand_in_server(KEY) as server, client_of(server) as client:
        server.proves_as = "http://127.0.0.1:9"
        with pytest.raises(AddressNotProvenError):
            client.get("/a")
        server.proves_as, server.subject = "", "another"
        with pytest.raises(AddressNotProvenError):
            client.get("/a")
        server.subject = ""
        assert client.get("/a").status_code == 200


def test_a_refusal_of_the_proof_has_its_status() -> None:
    with stand_in_server(None) as server, client_of(server) as client:
        server.proof_status = 401
        with pytest.raises(AddressNotProvenError) as caught:
            client.get("/a")
    assert caught.value.status == 401


def test_a_server_that_closes_each_connection_gets_no_token() -> None:
    with stand_in_server(KEY) as server, client_of(server) as client:
        server.keeps_connections = False
        with pytest.raises(AddressNotProvenError, match="closes each connection"):
            client.get("/a")
    assert server.credentials == set()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"proof": 1}', b'{"proof": "\\ud800"}', b"x" * (PROOF_BYTES_MAX + 1)])
def test_an_answer_that_is_no_proof_is_not_believed(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(StandInServer, "proof", lambda *_: (200, body))
    with stand_in_server(KEY) as server, client_of(server) as client, pytest.raises(AddressNotProvenError):
        client.get("/a")


def test_threads_share_proven_connections() -> None:
    with stand_in_server(KEY) as server, client_of(server) as client, ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda _: client.get("/a").status_code, range(20))
        assert set(answers) == {200}


def test_a_key_is_not_shown() -> None:
    assert KEY not in repr(Challenge("http://x", "/proof", KEY))


def asked_in_loop(server: StandInServer, *paths: str, key: str = KEY, subject: str = "", **query: str) -> list[int]:
    """Returns the statuses of requests of an event loop."""
    challenge = Challenge(server.url, "/proof", key, query, subject)

    async def asked() -> list[int]:
        transport = AsyncProvenTransport(challenge, httpx.AsyncHTTPTransport(trust_env=False))
        async with httpx.AsyncClient(
            base_url=server.url, headers={"Authorization": TOKEN}, transport=transport, trust_env=False
        ) as client:
            return [(await client.get(path)).status_code for path in paths]

    return run_coroutine(asked())


class TestEventLoop:
    def test_a_connection_is_proven_once_and_used_for_all_requests(self) -> None:
        with stand_in_server(KEY) as server:
            assert asked_in_loop(server, "/a", "/b") == [200, 200]
        assert [each[1:3] for each in server.requests] == [("/proof", None), ("/a", TOKEN), ("/b", TOKEN)]

    @pytest.mark.parametrize(("key", "subject"), [(None, ""), ("another-key", ""), (KEY, "another")])
    def test_who_proves_something_else_gets_no_token(self, key: str | None, subject: str) -> None:
        with stand_in_server(key) as server:
            server.subject = subject
            with pytest.raises(AddressNotProvenError):
                asked_in_loop(server, "/a")
        assert (set(server.asked), server.credentials) == ({"/proof"}, set())

    def test_a_refusal_has_its_status(self) -> None:
        with stand_in_server(None) as server:
            server.proof_status = 401
            with pytest.raises(AddressNotProvenError) as caught:
                asked_in_loop(server, "/a")
        assert caught.value.status == 401

    def test_a_server_that_closes_each_connection_gets_no_token(self) -> None:
        with stand_in_server(KEY) as server:
            server.keeps_connections = False
            with pytest.raises(AddressNotProvenError, match="closes each connection"):
                asked_in_loop(server, "/a")
        assert server.credentials == set()

    @pytest.mark.parametrize("body", [b"", b"[]", b'{"proof": 1}', b"x" * (PROOF_BYTES_MAX + 1)])
    def test_an_answer_that_is_no_proof_is_not_believed(self, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
        monkeypatch.setattr(StandInServer, "proof", lambda *_: (200, body))
        with stand_in_server(KEY) as server, pytest.raises(AddressNotProvenError):
            asked_in_loop(server, "/a")


def test_a_proof_is_of_its_key_nonce_address_and_subject() -> None:
    given = ("k", "n", "http://a", "s")
    others = [("l", *given[1:]), ("k", "m", *given[2:]), ("k", "n", "http://b", "s"), given[:3]]
    assert prove(*given) == prove(*given)
    assert len({prove(*each) for each in (given, *others)}) == 5
