"""Replaces a subtask's shards with the consolidated shard at opening.

Both must lead to the wanted version. The files in use, and their CLEAN marker, stay untouched until the new shard is
open at the same version. A process that dies on the way leaves either these or, after the last step, files without a
marker: the state is then rebuilt.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint

from ..keyed.schema import merge_schemas
from ..local.file_index import read_index, write_index
from ..local.subtask_directory import LocalShard, local_failures
from ..restore.opened_shards import OpenedShards, StateSource, open_shards
from ..restore.rebuild import replay
from .catch_up_log import CatchUpLog, changelogs_between
from .consolidation_directory import consolidations

if TYPE_CHECKING:
    from ..documents.state_version import StateVersion
    from ..local.subtask_directory import SubtaskDirectory
    from ..local.subtask_spec import SubtaskSpec
    from .consolidation_directory import ConsolidationDirectory

TAKE_OVER_CHANGELOGS_MAX = 4
logger = logging.getLogger(__name__)


def take_over(spec: SubtaskSpec, version: StateVersion, directory: SubtaskDirectory) -> OpenedShards | None:
    """Opens the subtask's state from a consolidated shard, if possible.

    The shard must lead to the version within a few changelogs. Unusable results are removed on the way, and hopeless
    consolidations are given up.

    Args:
        spec: The subtask.
        version: The wanted version.
        directory: Held by this process. If a state is returned, the files that were in use are gone; otherwise they are
            untouched.

    Returns:
        The state, or None if no consolidated shard can be used.
    """
    for consolidation in consolidations(directory.path.parent):
        if not _may_lead_to(version, consolidation):
            consolidation.give_up()
        if not consolidation.acquire():
            continue  # another process works on it
        try:
            opened = _take_over(spec, version, directory, consolidation)
        except (KeyscaleError, OSError):
            logger.warning("a consolidated shard of subtask %d cannot be used", spec.index, exc_info=True)
            consolidation.give_up()
            opened = None
        finally:
            if not consolidation.is_wanted or consolidation.has_died or consolidation.was_moved:
                consolidation.remove()
            consolidation.release()
        if opened is not None:
            return opened
    return None


def can_take_over(version: StateVersion, consolidation: ConsolidationDirectory) -> bool:
    """Returns whether a result leads to the version within a few changelogs."""
    ready = consolidation.ready()
    if ready is None:
        return False
    path = changelogs_between(CatchUpLog(consolidation).entries(), ready.lineage, version.lineage)
    return path is not None and len(path) <= TAKE_OVER_CHANGELOGS_MAX


def _may_lead_to(version: StateVersion, consolidation: ConsolidationDirectory) -> bool:
    """Returns whether a result leads to the version, now or when ready."""
    entries = CatchUpLog(consolidation).entries()
    ready = consolidation.ready()
    if ready is not None:
        return changelogs_between(entries, ready.lineage, version.lineage) is not None
    # Its version is somewhere between its base and its last entry, so only the last step can be checked.
    base = consolidation.base()
    return base is not None and version.lineage in {
        base.lineage,
        *(entry.before for entry in entries),
        *(entry.after for entry in entries),
    }


def _take_over(
    spec: SubtaskSpec, version: StateVersion, directory: SubtaskDirectory, consolidation: ConsolidationDirectory
) -> OpenedShards | None:
    ready, log = consolidation.ready(), CatchUpLog(consolidation)
    if ready is None or not consolidation.shard.exists():
        return None
    path = changelogs_between(log.entries(), ready.lineage, version.lineage)
    if path is None or len(path) > TAKE_OVER_CHANGELOGS_MAX:
        return None
    handles = log.handles(path)
    key_groups = spec.key_group_range
    data = directory.fresh_data()
    shard = LocalShard(f"{data.name}/0", key_groups.start, key_groups.end)
    with local_failures(data):
        data.mkdir()
        consolidation.shard.rename(directory.path / shard.directory)
    failpoint("take_over.moved")
    try:
        schema = merge_schemas([spec.schema, ready.schema, *(handle.schema for handle in handles)])
        opened = OpenedShards(open_shards(spec, directory, [shard]), schema, StateSource.LOCAL, ttls=ready.ttls)
    except BaseException:
        shutil.rmtree(data, ignore_errors=True)
        raise
    try:
        replay(log.objects, handles, key_groups, opened.engine(), data / "replay")
        failpoint("take_over.replayed")
        directory.take_clean_marker()
        failpoint("take_over.unmarked")
        directory.keep_only([shard])
        _remember(consolidation, directory, shard)
        consolidation.remove_catch_up_log()
        failpoint("take_over.removed")
    except BaseException:
        opened.close()
        shutil.rmtree(data, ignore_errors=True)
        raise
    logger.info("subtask %d of %s has one shard now", spec.index, spec.operator_uid)
    return opened


def _remember(consolidation: ConsolidationDirectory, directory: SubtaskDirectory, shard: LocalShard) -> None:
    with local_failures(directory.path):
        write_index(
            directory.path,
            [
                msgspec.structs.replace(file, path=f"{shard.directory}/{Path(file.path).name}")
                for file in read_index(consolidation.path).files
            ],
        )
