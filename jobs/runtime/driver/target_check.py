"""The check that a job can write to its targets.

Its targets are its store, its local directory and its sinks.

It runs before an attempt begins, and in a new driver before a change stops the old one. Nothing of it stays.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from keyscale.file_rights import missing_right
from keyscale.identifiers import JobId
from keyscale.state.doors.objects import DiskForbiddenError, StoreForbiddenError, probe
from keyscale.state.doors.paths import Layout

from ...sinks.sink import CheckedSink, SinkContext
from ..batch.runner import of_sink

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.doors.objects import ObjectStore

    from ...graph.topology import Topology
    from ...protocol.messages import Assignment
    from ..retries import Retries


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """Everything that an attempt of a job writes to.

    Attributes:
        topology: The job.
        assignment: The attempt.
        store: The object store.
        local_root: The directory of local state.
        retries: How long to wait for the object store.
        sink_retries: How long to wait for the system of a sink.
    """

    topology: Topology
    assignment: Assignment
    store: ObjectStore
    local_root: Path
    retries: Retries
    sink_retries: Retries

    def run(self) -> None:
        """Writes to each target and takes it back.

        Raises:
            KeyscaleError: A target cannot be written to. The errors that name a missing right are DiskForbiddenError,
                StoreForbiddenError and SinkForbiddenError.
        """
        if (reason := missing_right(self.local_root)) is not None:
            raise DiskForbiddenError(f"the directory of local state: {reason}")
        self.retries.run(self._probe)
        for node in self.topology.sinks:
            if isinstance(node.sink, CheckedSink):
                schema = self.topology.schema(node.input)
                context = SinkContext(self.assignment.job_id, node.uid, 0, self.assignment.attempt, uuid.uuid4().hex)
                self.sink_retries.run(partial(of_sink, node, partial(node.sink.check, schema, context)))

    def _probe(self) -> None:
        try:
            probe(self.store, Layout(JobId(self.assignment.job_id)).job)
        except StoreForbiddenError as error:
            raise StoreForbiddenError(f"{self.store.url}: {error}") from error
