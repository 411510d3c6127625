"""Samples of an operator's records.

The next batch with records of the operator takes them.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from ..errors import NoBatchYetError, UnknownOperatorError
from ..executor.record_sample import INPUT, OUTPUT, SampleOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from keyscale.identifiers import OperatorUid

    from ..executor.task_reports import TaskReport

_KEY_BYTES = 16


class _Wanted(NamedTuple):
    """An order, its operator, and the lines of each side."""

    uid: OperatorUid
    order: SampleOrder
    lines: dict[str, list[str]]
    is_taken: threading.Event


class RecordSampling:
    """Passes orders to the batches of a job, and records back.

    One sample is taken at a time: a new order replaces the order before.
    """

    def __init__(self) -> None:
        self._uids: Collection[OperatorUid] = ()
        self._wanted: _Wanted | None = None

    def serve(self, uids: Collection[OperatorUid]) -> None:
        """Names the operators of the batches to come."""
        self._uids = uids

    def begin(
        self, diagnostic_id: str, uid: str, *, rows: int, with_values: bool, seconds: float
    ) -> dict[str, Callable[[], str]]:
        """Orders a sample; returns how to wait for each side of it.

        Raises:
            DiagnosticFailedError: The job has no such operator, or has not started so far.
        """
        known = {str(each): each for each in self._uids}
        if not known:
            raise NoBatchYetError("the driver has just started, and does not know the job's operators yet")
        if uid not in known:
            raise UnknownOperatorError(f"the job has no operator {uid}; it has {', '.join(sorted(known))}")
        order = SampleOrder(diagnostic_id, rows, None if with_values else os.urandom(_KEY_BYTES))
        self._wanted = wanted = _Wanted(known[uid], order, {}, threading.Event())

        def read(side: str) -> str:
            if not wanted.is_taken.wait(seconds):
                self._forget(wanted)
                return f"(no batch with records of {uid} within {seconds:g} s)"
            return "\n".join(line for tag, lines in wanted.lines.items() if tag.startswith(side) for line in lines)

        return {INPUT: lambda: read(INPUT), OUTPUT: lambda: read(OUTPUT)}

    def order_of(self, uid: OperatorUid) -> SampleOrder | None:
        """Returns what the tasks of an operator sample in this batch."""
        wanted = self._wanted
        return wanted.order if wanted is not None and wanted.uid == uid else None

    def collect(self, reports: Iterable[TaskReport]) -> None:
        """Takes the records of a batch whose tasks have succeeded."""
        wanted = self._wanted
        if wanted is None:
            return
        for report in reports:
            if report.uid == wanted.uid and report.sample_id == wanted.order.id:
                for side, lines in report.sample.items():
                    found = wanted.lines.setdefault(side, [])
                    found.extend(lines[: wanted.order.rows - len(found)])
        if any(wanted.lines.values()):
            self._forget(wanted)
            wanted.is_taken.set()

    def _forget(self, wanted: _Wanted) -> None:
        if self._wanted is wanted:
            self._wanted = None
