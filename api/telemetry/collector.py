"""Pushes metrics and the traces of ended operations to a collector."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import httpx

from keyscale.clock import now_ms
from keyscale.db.job_scope import EVERYTHING
from keyscale.db.repositories import attempts, events, jobs, operations

from ..database_clock import shared_now_ms
from ..metrics import scrape
from .otlp_metrics import metrics_document
from .otlp_traces import EndedOperation, trace_document

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from ..control_plane.context import Context

logger = logging.getLogger(__name__)

_POLL_S = 5.0
_TIMEOUT_S = 10.0
_COMMIT_MS = 10_000
"""Traces wait this long after an operation's end, as the transaction that notes the end may commit later."""
_TRACES_MAX = 100
"""Maximum number of traces in a request."""


class Collector:
    """A thread that pushes to the collector of the settings.

    Each replica pushes the metrics that Prometheus would get of it, the leader the traces. What the collector does not
    take is lost.

    Args:
        context: The control plane.
        endpoint: The collector's URL, without `/v1/metrics`.
        headers: Headers of each request.
        every_ms: The time between two pushes of metrics.
        certificates: The certificates that the collector may have.
    """

    def __init__(
        self,
        context: Context,
        *,
        endpoint: str,
        headers: Mapping[str, str],
        every_ms: int,
        certificates: ssl.SSLContext | bool = True,
    ) -> None:
        self._context = context
        self._client = httpx.Client(
            base_url=endpoint, headers=dict(headers), timeout=_TIMEOUT_S, trust_env=False, verify=certificates
        )
        self._every_ms = every_ms
        self._pushed_at_ms = 0
        self._traced_until_ms = now_ms() - _COMMIT_MS
        self._is_away = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after its last push."""
        self._closing.set()
        self._thread.join()
        self._client.close()

    def poll(self) -> None:
        """Pushes the traces of ended operations, and metrics when due."""
        instance = self._context.settings.control_url
        at_ms = now_ms()
        until_ms = at_ms - _COMMIT_MS
        ended = self._ended(self._traced_until_ms, until_ms) if self._context.pulse.role == "leader" else []
        for first in range(0, len(ended), _TRACES_MAX):
            self._push("/v1/traces", trace_document(ended[first : first + _TRACES_MAX], instance))
        self._traced_until_ms = until_ms
        if at_ms - self._pushed_at_ms >= self._every_ms:
            self._pushed_at_ms = at_ms
            text = scrape.text_of(self._context, EVERYTHING)
            self._push("/v1/metrics", metrics_document(text, shared_now_ms(), instance))

    def _ended(self, after_ms: int, until_ms: int) -> list[EndedOperation]:
        with self._context.reads() as session:
            found = operations.ended_between(session, after_ms, until_ms)
            return [
                EndedOperation(
                    operation,
                    job.name,
                    attempts.first_since(session, job.id, operation.requested_at_ms, operation.ended_at_ms or until_ms),
                    events.request_of(session, job.id, operation.id),
                )
                for operation in found
                if (job := jobs.find(session, operation.job_id)) is not None
            ]

    def _push(self, path: str, document: dict[str, Any]) -> None:
        try:
            self._client.post(path, json=document).raise_for_status()
        except httpx.HTTPError as error:
            if not self._is_away:
                logger.warning("the collector does not take %s: %s", path, error)
            self._is_away = True
        else:
            self._is_away = False

    def _run(self) -> None:
        while not self._closing.wait(_POLL_S):
            try:
                self.poll()
            except Exception:  # telemetry must not end, nor end anything else
                logger.exception("metrics or traces were not pushed")
