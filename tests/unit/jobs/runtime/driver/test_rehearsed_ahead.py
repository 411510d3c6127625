"""A driver that waits beside another one rehearses its first batch where it has slots."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pyarrow as pa
import pytest

from keyscale.jobs.runtime.driver import execution
from tests.support.rehearsal.keyed_rehearsal import keyed_rehearsal
from tests.support.rehearsal.rehearsal import RehearsedRunner
from tests.unit.jobs.runtime.driver.test_checkpoints import Counts

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = pa.schema([("key", pa.string()), ("of_key", pa.int64()), ("of_subtask", pa.int64())])


@pytest.mark.parametrize(("slots", "rehearsals"), [(None, 0), (1, 0), (2, 1), (9, 1)])
def test_a_job_is_rehearsed_if_its_subtasks_can_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int | None, rehearsals: int
) -> None:
    job = keyed_rehearsal(tmp_path, Counts(), OUTPUT, [[("a", 0)]])
    job.start(2)
    rehearsed = Mock()
    monkeypatch.setattr(RehearsedRunner, "rehearse_input", rehearsed)
    with job._without_spark():
        monkeypatch.setattr(execution, "parallelism_of_slots", lambda _: slots)
        job._execution.rehearse_ahead()
    assert rehearsed.call_count == rehearsals
    job.drain()
    assert len(job.output("out")) == 1
