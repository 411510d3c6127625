"""Opens the files that a subtask has left on this host.

They may be behind the wanted version: the changelogs that they lack are then applied.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keyscale.failpoints import failpoint

from ..errors import StateError
from ..keyed.schema import merge_schemas
from .opened_shards import OpenedShards, StateSource, open_shards
from .plan import changelogs_after
from .rebuild import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..documents.changelog import ChangelogHandle
    from ..documents.state_version import StateVersion
    from ..local.subtask_directory import CleanMarker, SubtaskDirectory
    from ..local.subtask_spec import SubtaskSpec
    from ..objects.object_store import ObjectStore
    from .plan import RestorePlan

logger = logging.getLogger(__name__)


def reopen_shards(
    spec: SubtaskSpec,
    version: StateVersion,
    directory: SubtaskDirectory,
    store: ObjectStore,
    load_plan: Callable[[], RestorePlan],
) -> OpenedShards | None:
    """Opens the local files if they lead to the wanted version.

    The files count as dirty from now on.

    Args:
        spec: The subtask.
        version: The wanted version.
        directory: Held by this process.
        store: Holds the changelogs that the files lack.
        load_plan: Returns the plan that leads to the version; called only for files of another version.

    Returns:
        The shards, or None if the local files cannot be used.
    """
    marker = directory.take_clean_marker()
    failpoint("open.marker_taken")
    if marker is None:
        return None
    missing: Sequence[ChangelogHandle] | None = ()
    if marker.lineage != version.lineage:
        missing = changelogs_after(load_plan(), spec.key_group_range, marker.lineage)
    if missing is None:
        return None
    try:
        return _reopened(spec, directory, marker, missing, store)
    except StateError:
        logger.warning(
            "local state of subtask %d of %s cannot be opened; rebuilding it",
            spec.index,
            spec.operator_uid,
            exc_info=True,
        )
        return None


def _reopened(
    spec: SubtaskSpec,
    directory: SubtaskDirectory,
    marker: CleanMarker,
    missing: Sequence[ChangelogHandle],
    store: ObjectStore,
) -> OpenedShards:
    directory.keep_only(marker.shards)
    schema = merge_schemas([spec.schema, marker.schema, *(changelog.schema for changelog in missing)])
    opened = OpenedShards(open_shards(spec, directory, marker.shards), schema, StateSource.LOCAL, ttls=marker.ttls)
    try:
        if missing:
            replay(store, missing, spec.key_group_range, opened.engine(), directory.fresh_data())
            failpoint("open.caught_up")
    except BaseException:
        opened.close()
        raise
    return opened
