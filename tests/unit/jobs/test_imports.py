"""What is not imported costs no time at the start of a driver or a worker."""

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
import jobs.runtime.driver
assert "pandas" not in sys.modules, "by the driver"
from jobs.deduplicate import Deduplicate
from jobs.runtime.body import KEY_GROUP_COLUMN, SubtaskFacts
from state.columns import column_over
from state.filtered_engine import FilteredEngine
from state.keyed import KeyedStateBackend

ids = "".join(str(uuid.uuid4()) for _ in range(2000)).encode()
for width in (36, 35):  # identifiers, and texts that are none
    ends = np.arange(2001, dtype=np.int32) * width
    column = pa.StringArray.from_buffers(2000, pa.py_buffer(ends), pa.py_buffer(ids))
    schema = pa.schema([("id", pa.string())])
    facts = SubtaskFacts("uid", 0, 1, 8, 1, ("id",), ("id",), None, schema)
    engine = FilteredEngine(Path(sys.argv[1], str(width)))
    state = KeyedStateBackend(engine, schema, lambda: 0)
    groups = column_over(np.zeros(2000, np.int32))
    batch = pa.RecordBatch.from_arrays([column, groups], ["id", KEY_GROUP_COLUMN])
    body = Deduplicate(None).start(state, facts)
    passed = [found.num_rows for _ in range(2) for found in body.process(batch)]
    assert passed == [2000, 0], passed
    engine.write_runs(state.drain())
    engine.close()
assert "pandas" not in sys.modules, "by a deduplication"
"""


REHEARSES = """
import sys
import jobs.runtime.batch
assert "pandas" not in sys.modules
assert jobs.runtime.batch.rehearse_conversion(0) == b""
assert "pandas" in sys.modules
"""


def test_a_rehearsal_imports_what_a_workers_first_rows_need() -> None:
    child = subprocess.run([sys.executable, "-c", REHEARSES], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


def test_neither_a_driver_nor_a_deduplication_imports_pandas(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", DEDUPLICATES, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
