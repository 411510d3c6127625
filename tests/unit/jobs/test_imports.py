"""Drivers and workers do not import slow modules that they do not need."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DEDUPLICATES = """
import sys, uuid
from pathlib import Path
import numpy as np, pyarrow as pa
import keyscale.jobs.runtime.driver.main
assert "pandas" not in sys.modules, "by the driver"
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN, SubtaskProgress, run_subtask
from keyscale.jobs.runtime.executor.side_outputs import to_wire
from keyscale.jobs.functions.subtask_info import SubtaskInfo
from keyscale.state.serializers.arrow_columns import column_over
from keyscale.state.engine.filtered import FilteredEngine
from keyscale.state.keyed.backend import KeyedStateBackend

ids = "".join(str(uuid.uuid4()) for _ in range(2000)).encode()
for width in (36, 35):  # identifiers, and texts that are none
    ends = np.arange(2001, dtype=np.int32) * width
    column = pa.StringArray.from_buffers(2000, pa.py_buffer(ends), pa.py_buffer(ids))
    schema = pa.schema([("id", pa.string())])
    info = SubtaskInfo("uid", 0, 1, 8, 1, ("id",), ("id",), None, schema, side_outputs={"late": schema})
    engine = FilteredEngine(Path(sys.argv[1], str(width)))
    state = KeyedStateBackend(engine, schema, lambda: 0)
    groups = column_over(np.zeros(2000, np.int32))
    batch = pa.RecordBatch.from_arrays([column, groups], ["id", KEY_GROUP_COLUMN])
    records = run_subtask(Deduplicate(None), state, info, [batch, batch], progress=SubtaskProgress())
    assert [found.num_rows for found in to_wire(records, info)] == [2000, 0]
    engine.write_runs(state.drain())
    engine.close()
assert "pandas" not in sys.modules, "by a deduplication"
"""


REHEARSES = """
import sys
import keyscale.jobs.runtime.batch.runner
assert "pandas" not in sys.modules
assert keyscale.jobs.runtime.batch.runner.rehearse_conversion(0) == b""
assert "pandas" in sys.modules
"""


def test_a_rehearsal_imports_the_modules_that_a_workers_first_rows_need() -> None:
    child = subprocess.run([sys.executable, "-c", REHEARSES], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


def test_neither_a_driver_nor_a_deduplication_imports_pandas(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", DEDUPLICATES, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
