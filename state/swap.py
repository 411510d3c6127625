"""Taking in a consolidated shard when a subtask is opened, at exactly the version that is wanted.

The files in use, and the marker that says what they are, stay untouched until the new shard is open at the same version. So
a process that dies on the way finds either these or, after the last step, none that are marked: then the state is rebuilt.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from state.consolidation_directory import consolidations
from state.directory import LocalShard, local_failures
from state.errors import KeyscaleError
from state.local_files import read_index, write_index
from state.opened_shards import OpenedShards, StateSource, open_shards
from state.rebuild import replay
from state.schema_merge import merge_schemas
from state.syncpoint import reach
from state.tail import Tail, leading

if TYPE_CHECKING:
    from state.consolidation_directory import ConsolidationDirectory
    from state.directory import SubtaskDirectory
    from state.subtask_spec import SubtaskSpec
    from state.version import StateVersion

SWAP_CHANGELOGS_MAX = 4
logger = logging.getLogger(__name__)


def swap_in(spec: SubtaskSpec, version: StateVersion, directory: SubtaskDirectory) -> OpenedShards | None:
    """The subtask's state from a consolidated shard, if there is one that leads to the version in a few changelogs.

    Results that lead nowhere are removed on the way, and consolidations that cannot come to one are given up.

    Args:
        spec: Whose state.
        version: Which state.
        directory: Held by this process. What was in use there is gone if this returns a state, and as it was otherwise.
    """
    for consolidation in consolidations(directory.path.parent):
        if not _may_lead_to(version, consolidation):
            consolidation.give_up()
        if not consolidation.acquire():
            continue  # someone works on it
        try:
            opened = _swap_in(spec, version, directory, consolidation)
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


def can_swap(version: StateVersion, consolidation: ConsolidationDirectory) -> bool:
    """Whether there is a result that leads to the version in a few changelogs."""
    ready = consolidation.ready()
    if ready is None:
        return False
    path = leading(Tail(consolidation).entries(), ready.lineage, version.lineage)
    return path is not None and len(path) <= SWAP_CHANGELOGS_MAX


def _may_lead_to(version: StateVersion, consolidation: ConsolidationDirectory) -> bool:
    """Whether the result is of the version, or of one before it with all changelogs in between, or may yet be."""
    entries = Tail(consolidation).entries()
    ready = consolidation.ready()
    if ready is not None:
        return leading(entries, ready.lineage, version.lineage) is not None
    # It stands somewhere between its base and what its tail still has; only the last step can be told.
    base = consolidation.base()
    return base is not None and version.lineage in {
        base.lineage,
        *(entry.before for entry in entries),
        *(entry.after for entry in entries),
    }


def _swap_in(
    spec: SubtaskSpec, version: StateVersion, directory: SubtaskDirectory, consolidation: ConsolidationDirectory
) -> OpenedShards | None:
    ready, tail = consolidation.ready(), Tail(consolidation)
    if ready is None or not consolidation.shard.exists():
        return None
    path = leading(tail.entries(), ready.lineage, version.lineage)
    if path is None or len(path) > SWAP_CHANGELOGS_MAX:
        return None
    handles = tail.handles(path)
    key_groups = spec.key_group_range
    data = directory.fresh_data()
    shard = LocalShard(f"{data.name}/0", key_groups.start, key_groups.end)
    with local_failures(data):
        data.mkdir()
        consolidation.shard.rename(directory.path / shard.directory)
    reach("swap.moved")
    try:
        schema = merge_schemas([spec.schema, ready.schema, *(handle.schema for handle in handles)])
        opened = OpenedShards(open_shards(spec, directory, [shard]), schema, StateSource.LOCAL, ttls=ready.ttls)
    except BaseException:
        shutil.rmtree(data, ignore_errors=True)
        raise
    try:
        replay(tail.objects, handles, key_groups, opened.engine(), data / "replay")
        reach("swap.replayed")
        directory.take_clean_marker()
        reach("swap.unmarked")
        directory.keep_only([shard])
        _remember(consolidation, directory, shard)
        consolidation.let_go()
        reach("swap.removed")
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
                for file in read_index(consolidation.path)
            ],
        )
