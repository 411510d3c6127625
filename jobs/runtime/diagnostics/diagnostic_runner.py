"""The thread of a driver that takes diagnostics of its job."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from ...protocol.messages import (
    DIAGNOSTIC_CHARACTERS_MAX,
    DIAGNOSTIC_PARTS_MAX,
    DiagnosticPart,
    DiagnosticReport,
    Failure,
)
from ..errors import DiagnosticFailedError
from .readings import read_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from keyscale.vocabulary import DiagnosticKind

    from ...protocol.messages import DiagnosticCommand
    from ..control.channel import ControlChannel

    Means = Mapping[DiagnosticKind, Callable[[DiagnosticCommand], Mapping[str, Callable[[], str]]]]

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""How long processes may take to answer, beyond the time in which the diagnostic observes them."""
_NAME_CHARACTERS_MAX = 200
_CUT = "\n(the rest is left out)\n"
_KEPT = 4
"""The reports that are kept, to be sent again if they got lost."""


class DiagnosticRunner:
    """Takes the diagnostics that the control plane requests, one at a time.

    They run beside the batches, on a thread of their own, and so while a batch hangs. Whatever fails is reported, and
    changes nothing for the job.

    Args:
        channel: The connection to the control plane.
        means: Returns, for each kind, how to read the texts of a diagnostic.
        mask: Masks the secrets that this process knows.
    """

    def __init__(
        self,
        channel: ControlChannel,
        means: Means,
        mask: Callable[[str], str] = str,
    ) -> None:
        self._channel = channel
        self._means = means
        self._mask = mask
        self._requests: queue.SimpleQueue[DiagnosticCommand | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._reports: dict[str, DiagnosticReport] = {}
        self._thread = threading.Thread(target=self._run, name="diagnostics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Takes no further diagnostics; leaves a running one behind."""
        self._requests.put(None)

    def request(self, requests: Iterable[DiagnosticCommand]) -> None:
        """Takes requests, which are repeated until their reports have arrived."""
        with self._lock:
            news = [each for each in requests if each.id not in self._busy]
            self._busy.update(each.id for each in news)
        for each in news:
            self._requests.put(each)

    def _run(self) -> None:
        while (command := self._requests.get()) is not None:
            report = self._reports.get(command.id) or self._taken(command)
            self._reports = dict([*self._reports.items(), (command.id, report)][-_KEPT:])
            try:
                self._channel.report_diagnostic(report)
            except Exception as error:  # noqa: BLE001 - the request is repeated; at the end the channel is closed
                logger.warning("the report of diagnostic %s has not arrived: %s", command.id, error)
            finally:
                with self._lock:
                    self._busy.discard(command.id)

    def _taken(self, command: DiagnosticCommand) -> DiagnosticReport:
        try:
            found = read_within(command.duration_ms / 1000 + ANSWER_SECONDS, self._means[command.kind](command))
        except DiagnosticFailedError as error:
            return self._failed(command, error)
        except Exception as error:  # a diagnostic never fails the job
            logger.warning("diagnostic %s failed", command.id, exc_info=True)
            return self._failed(command, DiagnosticFailedError(f"{type(error).__name__}: {error}"))
        return DiagnosticReport(diagnostic_id=command.id, parts=shortened(found, self._mask))

    def _failed(self, command: DiagnosticCommand, error: DiagnosticFailedError) -> DiagnosticReport:
        failure = Failure(code=error.code, message=self._mask(str(error)), advice=error.advice)
        return DiagnosticReport(diagnostic_id=command.id, failure=failure)


def shortened(texts: Mapping[str, str], mask: Callable[[str], str] = str) -> list[DiagnosticPart]:
    """Returns texts as parts of a report, within its limits.

    A long text loses its end.
    """
    some = {name[:_NAME_CHARACTERS_MAX]: mask(text) for name, text in list(texts.items())[:DIAGNOSTIC_PARTS_MAX]}
    limit = DIAGNOSTIC_CHARACTERS_MAX // max(1, len(some)) - _NAME_CHARACTERS_MAX - len(_CUT)
    return [
        DiagnosticPart(name=name, text=text if len(text) <= limit else text[:limit] + _CUT)
        for name, text in some.items()
    ]
