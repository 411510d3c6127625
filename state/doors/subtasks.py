"""A subtask's store in an executor: opening, snapshots and uploads.

No other door imports RocksDB.
"""

from __future__ import annotations

from ..consolidation.consolidator import start_consolidator
from ..documents.changelog import ChangelogHandle
from ..documents.manifest import SnapshotHandle
from ..documents.state_version import StateVersion
from ..engine.key_group_sizes import KeyGroupSizes
from ..keyed.schema import merge_schemas
from ..local.subtask_spec import SubtaskSpec
from ..operator_state.operator_files import OperatorStatePlan
from ..restore.opened_shards import StateSource
from ..restore.plan import (
    DeferredPlan,
    RestorePlan,
    check_cover,
    followed_in_log,
    history_of,
    plan_operator,
    version_of,
)
from ..snapshot.snapshot import LocalSnapshot, LocalSnapshotLostError, upload_snapshot
from ..subtask.open_store_cache import IDLE_SECONDS_MAX, OpenStoreCache
from ..subtask.store import SubtaskStore, open_subtask

__all__ = [
    "IDLE_SECONDS_MAX",
    "ChangelogHandle",
    "DeferredPlan",
    "KeyGroupSizes",
    "LocalSnapshot",
    "LocalSnapshotLostError",
    "OpenStoreCache",
    "OperatorStatePlan",
    "RestorePlan",
    "SnapshotHandle",
    "StateSource",
    "StateVersion",
    "SubtaskSpec",
    "SubtaskStore",
    "check_cover",
    "followed_in_log",
    "history_of",
    "merge_schemas",
    "open_subtask",
    "plan_operator",
    "start_consolidator",
    "upload_snapshot",
    "version_of",
]
