"""Finds another control plane when a driver's own does not answer."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import httpx

from keyscale.certificates import trusted_certificates
from keyscale.errors import KeyscaleError

from ...protocol.control_address import attempt_challenge, read_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from keyscale.state.doors.objects import ObjectStore

logger = logging.getLogger(__name__)

PROOF_TIMEOUT_S = 3.0
SEARCH_PAUSE_S = 2.0


class ControlSearch:
    """Looks for control planes that know this attempt.

    It asks the control planes that the last one named, then the control planes listed in the store.

    Args:
        attempt: The attempt, as `<job>:<number>`.
        token: Its token; the search never sends it.
        open_store: Opens the job's store.
        monotonic: A clock in seconds.
        ca_file: PEM file with further certificate authorities to trust.
    """

    def __init__(
        self,
        attempt: str,
        token: str,
        open_store: Callable[[], ObjectStore],
        monotonic: Callable[[], float] = time.monotonic,
        ca_file: str | None = None,
    ) -> None:
        self._trusted = trusted_certificates(ca_file)
        self._attempt = attempt
        self._token = token
        self._open_store = open_store
        self._monotonic = monotonic
        self._known: list[str] = []
        self._next_at_s = float("-inf")

    def speak_as(self, attempt: str, token: str) -> None:
        """Looks for control planes that know another attempt."""
        self._attempt, self._token = attempt, token

    def remember(self, urls: Iterable[str]) -> None:
        """Keeps the addresses that the control plane has just named."""
        self._known = list(urls)

    def find(self, besides: str) -> str | None:
        """Returns the address of a control plane that knows this attempt.

        It returns None if the search finds no control plane, and right after a search.

        Args:
            besides: The address that does not answer.
        """
        if self._monotonic() < self._next_at_s:
            return None
        tried = {besides}
        try:
            for url in self._candidates():
                if url not in tried and self._is_proven(url):
                    logger.warning("no answer from the control plane at %s; using %s", besides, url)
                    return url
                tried.add(url)
        finally:
            self._next_at_s = self._monotonic() + SEARCH_PAUSE_S
        return None

    def _candidates(self) -> Iterator[str]:
        yield from self._known
        try:
            yield from (address.url for address in read_addresses(self._open_store()))
        except (KeyscaleError, OSError) as error:
            logger.info("the store does not list other control planes: %s", error)

    def _is_proven(self, url: str) -> bool:
        """Returns whether the control plane at an address knows this attempt."""
        try:
            with httpx.HTTPTransport(verify=self._trusted, trust_env=False) as transport:
                timeout = httpx.Timeout(PROOF_TIMEOUT_S).as_dict()
                attempt_challenge(url, self._attempt, self._token).ask(transport, {"timeout": timeout})
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
        return True
