"""Brings the state of other systems into savepoints.

It loads the program that goes on, so that only what the program does not say needs to be said.
"""

from __future__ import annotations

from .flink_import import import_flink_savepoint
from .import_report import (
    FlinkImportReport,
    ImportedFlinkSource,
    ImportedFlinkState,
    ImportedSource,
    ImportedState,
    ImportReport,
)
from .local_session import local_session
from .spark_import import import_spark_checkpoint

__all__ = [
    "FlinkImportReport",
    "ImportReport",
    "ImportedFlinkSource",
    "ImportedFlinkState",
    "ImportedSource",
    "ImportedState",
    "import_flink_savepoint",
    "import_spark_checkpoint",
    "local_session",
]
