"""Relied on: pyspark.cloudpickle.

A failure here means that batches fail, and that functions cannot be tested by the harness.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

from keyscale.jobs.spark_internals.function_copies import worker_copy

if TYPE_CHECKING:
    import pytest


def test_what_a_script_defines_is_copied_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    script = types.ModuleType("__main__")
    exec("FACTOR = 3\ndef triple(n): return FACTOR * n", script.__dict__)  # noqa: S102 - a script of this test
    monkeypatch.setitem(sys.modules, "__main__", script)
    copy = worker_copy(script.__dict__["triple"])
    script.__dict__["FACTOR"] = 0
    assert copy(4) == 12
