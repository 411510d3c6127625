"""Messages go to allowed addresses only, and no answer can hold the sender or lead it elsewhere."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import httpcore
import pytest

from keyscale.api.notifications import http_sender
from keyscale.api.notifications.channels import Post
from keyscale.api.notifications.http_sender import GuardedNetwork, NotDeliveredError, Sender, is_public
from tests.support.coroutines import run_coroutine
from tests.support.servers.webhook_receiver import webhook_receiver

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_an_address_inside_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:93.184.215.14"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


def test_a_name_with_one_private_address_is_refused_before_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 443)) for each in ("93.184.215.14", "10.0.0.1")]

    async def connect() -> None:
        async def resolve(*_: Any, **__: Any) -> list[Any]:
            return found

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        await GuardedNetwork(allows_private=False).connect_tcp("rebound.example.com", 443)

    with pytest.raises(NotDeliveredError, match="private address"):
        run_coroutine(connect())


def test_the_address_that_was_checked_is_the_address_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = []

    class Network(httpcore.AsyncNetworkBackend):
        async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
            connected.append((host, port))
            if host == "2606:4700::1":
                raise httpcore.ConnectError
            return httpcore.AsyncMockStream([])

    async def connect() -> None:
        async def resolve(*_: Any, **__: Any) -> list[Any]:
            return [(0, 0, 0, "", (each, 443)) for each in ("2606:4700::1", "93.184.215.14")]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        await GuardedNetwork(allows_private=False).connect_tcp("rebound.example.com", 443)

    monkeypatch.setattr(httpcore, "AnyIOBackend", Network)
    run_coroutine(connect())
    assert connected == [("2606:4700::1", 443), ("93.184.215.14", 443)]


@pytest.mark.parametrize("host", ["a..example.com", f"{'a' * 64}.example.com"])
def test_a_name_that_no_host_can_have_is_not_known(host: str) -> None:
    with pytest.raises(NotDeliveredError, match="not known"):
        run_coroutine(GuardedNetwork(allows_private=True).connect_tcp(host, 443))


def test_a_target_that_accepts_and_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sender, "SECONDS_MAX", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotDeliveredError, match="did not answer"):
            run_coroutine(Sender(allows_private=True).post(Post(url, b"{}")))


def test_a_target_that_is_gone_is_not_asked_again() -> None:
    with webhook_receiver() as receiver:
        receiver.statuses = [410]
        with pytest.raises(NotDeliveredError) as refusal:
            run_coroutine(Sender(allows_private=True).post(Post(receiver.url, b"{}")))
    assert refusal.value.is_final


def test_a_redirect_is_named_and_not_followed() -> None:
    with webhook_receiver() as receiver:
        receiver.statuses = [307]
        with pytest.raises(NotDeliveredError, match="redirects are not followed"):
            run_coroutine(Sender(allows_private=True).post(Post(receiver.url, b"{}")))
        assert len(receiver.received) == 1


def test_only_a_target_that_is_gone_is_final_and_every_success_is_a_delivery() -> None:
    sender = Sender(allows_private=True)
    with webhook_receiver() as receiver:
        receiver.statuses = [200, 204, 299]
        for _ in range(3):
            run_coroutine(sender.post(Post(receiver.url, b"{}")))
        finals = {}
        for status in (302, 404, 500):
            receiver.statuses = [status]
            with pytest.raises(NotDeliveredError, match=f"127.0.0.1 answered {status}") as refusal:
                run_coroutine(sender.post(Post(receiver.url, b"{}")))
            finals[status] = refusal.value.is_final
    assert finals == dict.fromkeys(finals, False)


def test_a_message_has_its_own_headers_and_trusts_the_authorities_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trusted: list[Path | None] = []
    monkeypatch.setattr(http_sender, "trusted_certificates", trusted.append)
    with webhook_receiver() as receiver:
        sender = Sender(allows_private=True, ca_file=tmp_path / "ca.pem")
        run_coroutine(sender.post(Post(f"{receiver.url}/hook?a=b", b"{1}", {"X-Own": "x"})))
        [received] = receiver.received
        with pytest.raises(NotDeliveredError, match="private address"):
            run_coroutine(Sender(allows_private=False).post(Post(receiver.url, b"{}")))
        assert len(receiver.received) == 1
    assert (received.path, received.body) == ("/hook?a=b", b"{1}")
    assert {name: received.headers[name] for name in ("x-own", "user-agent", "connection")} == {
        "x-own": "x",
        "user-agent": "Keyscale",
        "connection": "close",
    }
    assert trusted == [tmp_path / "ca.pem", None]
