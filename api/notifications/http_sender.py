"""Sends notifications, to allowed addresses and within limits."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpcore

from keyscale.certificates import trusted_certificates

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .channels import Post

SECONDS_MAX = 10.0
"""How long a message may take in all: to find the host, to connect, to send, and until the answer's status."""
_TRANSLATED = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))
"""IPv6 addresses that lead to IPv4 addresses."""


class NotDeliveredError(Exception):
    """A message was not delivered.

    The text says why, without the answer's body, which may be secret.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


def is_public(address: str) -> bool:
    """Returns whether an IP address is a public address of the Internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif any(found in network for network in _TRANSLATED):
            return False
    return found.is_global and not found.is_multicast


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to public addresses only, unless private addresses are allowed.

    The address that was checked is the address that is connected to: a name that resolves differently the next time
    leads nowhere else.

    Args:
        allows_private: Whether private, link-local and loopback addresses are allowed.
    """

    def __init__(self, *, allows_private: bool) -> None:
        self._allows_private = allows_private
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the form of the library
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to the first address of a host that answers.

        Raises:
            NotDeliveredError: The host has an address that is not allowed.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # such as a name with a part of more than 63 characters
            raise NotDeliveredError("the name of the host is not known") from None
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if not self._allows_private and not all(map(is_public, addresses)):
            raise NotDeliveredError("the host has a private address, which this control plane does not allow")
        for address in addresses[:-1]:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError:
                continue
        return await self._network.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Sender:
    """Sends messages over HTTP.

    It follows no redirect, uses no proxy, and does not read the body of an answer.

    Args:
        allows_private: Whether private, link-local and loopback addresses are allowed.
        ca_file: PEM file with further certificate authorities.
    """

    def __init__(self, *, allows_private: bool, ca_file: Path | None = None) -> None:
        self._network = GuardedNetwork(allows_private=allows_private)
        self._certificates = trusted_certificates(ca_file)

    async def post(self, post: Post) -> None:
        """Sends a request.

        Raises:
            NotDeliveredError: The target has not accepted it.
        """
        parts = urlsplit(post.url)
        headers = {"User-Agent": "Keyscale", "Connection": "close", **post.headers}
        try:
            async with (
                asyncio.timeout(SECONDS_MAX),
                httpcore.AsyncConnectionPool(
                    ssl_context=self._certificates, network_backend=self._network, max_keepalive_connections=0
                ) as pool,
                pool.stream("POST", post.url, headers=list(headers.items()), content=post.body) as answer,
            ):
                status = answer.status
        except TimeoutError:
            raise NotDeliveredError(f"{parts.hostname} did not answer within {SECONDS_MAX:.0f} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            reason = "its certificate is not trusted" if "CERTIFICATE_VERIFY" in str(error) else type(error).__name__
            raise NotDeliveredError(f"{parts.hostname} cannot be reached: {reason}") from None
        if 300 <= status < 400:
            raise NotDeliveredError(f"{parts.hostname} answered {status}; redirects are not followed")
        if not 200 <= status < 300:
            raise NotDeliveredError(f"{parts.hostname} answered {status}", is_final=status == 410)
