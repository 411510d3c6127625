"""Makes a subtask's shards anew as one, beside the batches: `python -m state.consolidator <consolidation's directory>`.

It works on hard links, at a low priority, and ends with the process that it is told to watch. Whatever it leaves when
it is killed is recognized as garbage and removed when the subtask is next opened.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from state.cleanup import Occasion, expired_entries, purge_all
from state.consolidation_directory import ConsolidationDirectory
from state.directory import CleanMarker, LocalShard, boot_id, local_failures
from state.errors import KeyscaleError
from state.local_files import FileIdentity, IndexedFile, hash_file, known_hashes, link_or_copy, write_index
from state.merging import merge_shards
from state.rebuild import replay
from state.rocksdb import RocksDbEngine
from state.schema_merge import merge_schemas
from state.settings import MEBIBYTE
from state.swap import SWAP_CHANGELOGS_MAX
from state.syncpoint import reach
from state.tail import Tail, certain
from state.ttl import BatchClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state.consolidation_directory import ConsolidationBase
    from state.engine import Engine
    from state.identifiers import BatchId
    from state.key_groups import KeyGroupRange
    from state.schema import KeyedSchema
    from state.settings import RocksDbSettings
    from state.ttl import Clock, Ttl

logger = logging.getLogger(__name__)
CATCH_UP_ROUNDS_MAX = 20
LEFT_TO_SWAP_MAX = 2  # batches: the newest one's changelog is never certain, and one more may come at any time
_MEMORY_BYTES = 64 * MEBIBYTE
_NICENESS = 10  # about a tenth of a core that batches keep busy; at 19 a merge would not end on such a host
_IMMUTABLE_SUFFIX = ".sst"


class ConsolidationUnwantedError(KeyscaleError):
    """Nobody waits for the consolidation's result any more, or it cannot catch up with the batches."""

    code = "STATE_CONSOLIDATION_GIVEN_UP"
    retryable = True
    advice = "The subtask goes on with the shards that it has; consolidation is tried again later."


@dataclass(frozen=True, slots=True)
class _Standing:
    """Of which version the new shard is."""

    batch_id: BatchId
    lineage: str
    schema: KeyedSchema | None
    ttls: dict[str, Ttl]

    @classmethod
    def of(cls, record: ConsolidationBase | CleanMarker) -> Self:
        return cls(record.batch_id, record.lineage, record.schema, record.ttls)

    def marker(self, shard: Path, key_groups: KeyGroupRange) -> CleanMarker:
        local = LocalShard(shard.name, key_groups.start, key_groups.end)
        return CleanMarker(self.batch_id, self.lineage, (local,), boot_id(), self.schema, self.ttls)


def consolidate(directory: Path, clock: Clock | None = None) -> bool:
    """Make a consolidation that a snapshot has begun (`LocalSnapshot.consolidation`), or let its result catch up.

    May run in any process on the subtask's host, beside its batches. The result is taken in when the subtask is next opened.

    Args:
        directory: The consolidation's.
        clock: Has entries left out that are expired by then, where their TTL says so (`Cleanup.compaction`).

    Returns:
        Whether there is a result. Without one the consolidation was given up, or another process is at it.

    Raises:
        KeyscaleError, OSError: It failed, and was given up.
    """
    consolidation = ConsolidationDirectory(directory)
    if not consolidation.acquire():
        return False
    try:
        try:
            return _consolidate(consolidation, clock)
        except BaseException:
            consolidation.give_up()
            raise
        finally:
            if not consolidation.is_wanted:
                consolidation.remove()
    finally:
        consolidation.release()


def start_consolidator(directory: Path, watched: int, clock: Clock | None = None) -> None:
    """Consolidate in a process of its own, which ends with the process of id `watched`; nothing if one is at it.

    Args:
        directory: The consolidation's.
        watched: A process that lives about as long as the subtask may stay on this host.
        clock: As for `consolidate`.
    """
    consolidation = ConsolidationDirectory(directory)
    if consolidation.is_ready and len(Tail(consolidation).entries()) <= SWAP_CHANGELOGS_MAX:
        return
    if not consolidation.acquire():
        return
    consolidation.release()
    command = [sys.executable, "-m", "state.consolidator", str(directory), f"--watched={watched}"]
    if clock is not None:
        command += [f"--processing-time-ms={clock.processing_time_ms}", f"--event-time-ms={clock.event_time_ms}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    nowhere = subprocess.DEVNULL  # a Spark worker's own output is read as its protocol
    try:
        process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, env=environment, start_new_session=True)  # noqa: S603 (ourselves)
    except OSError:  # a host that has no room for it: the checkpoint is none the worse
        logger.warning("no process can be started to merge shards", exc_info=True)
        consolidation.give_up()
        return
    threading.Thread(target=process.wait, name="consolidator", daemon=True).start()  # an ended child must not stay


def _consolidate(consolidation: ConsolidationDirectory, clock: Clock | None) -> bool:
    base, ready = consolidation.base(), consolidation.ready()
    if base is None or not consolidation.is_wanted or consolidation.has_died:
        consolidation.give_up()
        return False
    standing = _Standing.of(base if ready is None else ready)
    settings = replace(base.settings, memory_budget_bytes=min(_MEMORY_BYTES, base.settings.memory_budget_bytes))
    with local_failures(consolidation.path):
        consolidation.mark_started()
        consolidation.unmark_ready()
    reach("consolidate.started")
    if ready is None:
        _build(consolidation, base, settings, clock)
    with closing(RocksDbEngine(consolidation.shard, settings)) as engine:
        standing = _catch_up(consolidation, base.key_groups, engine, standing)
        engine.flush()
    _index(consolidation)
    reach("consolidate.closed")
    with local_failures(consolidation.path):
        consolidation.mark_ready(standing.marker(consolidation.shard, base.key_groups))
    reach("consolidate.ready")
    return True


def _build(
    consolidation: ConsolidationDirectory, base: ConsolidationBase, settings: RocksDbSettings, clock: Clock | None
) -> None:
    """The new shard, at the snapshot's version: it grows from the largest one, which is only clipped and compacted."""
    snapshot = Path(base.snapshot)
    sizes = [_size_bytes(snapshot / shard.directory) for shard in base.shards]
    largest = sizes.index(max(sizes))
    directories = [consolidation.path / f"source-{number}" for number in range(len(sizes))]
    directories[largest] = consolidation.shard
    for shard, directory in zip(base.shards, directories, strict=True):
        _link(snapshot / shard.directory, directory)
    reach("consolidate.linked")
    with ExitStack() as stack:
        engines = [stack.enter_context(closing(RocksDbEngine(directory, settings))) for directory in directories]
        parts = [(shard.key_groups, engine) for shard, engine in zip(base.shards, engines, strict=True)]
        key_groups, target = parts.pop(largest)
        merge_shards(
            target,
            key_groups,
            parts,
            consolidation.path,
            purge=lambda: _purge(target, base, clock),
            check=lambda: _check_wanted(consolidation),
        )
    with local_failures(consolidation.path):
        for directory in directories:
            if directory != consolidation.shard:
                shutil.rmtree(directory)
    _index(consolidation)
    reach("consolidate.built")


def _purge(engine: Engine, base: ConsolidationBase, clock: Clock | None) -> None:
    if clock is None:
        return
    expired = expired_entries(base.schema, base.ttls, clock, Occasion.COMPACTION)
    families = engine.families()
    purge_all(engine, {family: check for family, check in expired.items() if family in families})


def _catch_up(
    consolidation: ConsolidationDirectory, key_groups: KeyGroupRange, engine: Engine, standing: _Standing
) -> _Standing:
    """Apply what has been committed since, again and again, until the batches have no lead to speak of."""
    tail = Tail(consolidation)
    for _ in range(CATCH_UP_ROUNDS_MAX):
        _check_wanted(consolidation)
        entries = certain(tail.entries(), standing.lineage)
        if entries:
            handles = tail.handles(entries)
            replay(tail.objects, handles, key_groups, engine, consolidation.path / "replay")
            tail.forget(entries)
            schema = merge_schemas([standing.schema, *(handle.schema for handle in handles)])
            standing = _Standing(entries[-1].batch_id, entries[-1].after, schema, standing.ttls)
        reach("consolidate.caught_up")
        # By batches, as tries of a task that were lost leave changelogs that nobody will ever build upon.
        if len({entry.batch_id for entry in tail.entries() if entry.batch_id > standing.batch_id}) <= LEFT_TO_SWAP_MAX:
            return standing
    message = "the batches are faster than the consolidation that is to catch up with them"
    raise ConsolidationUnwantedError(message)


def _check_wanted(consolidation: ConsolidationDirectory) -> None:
    if not consolidation.is_wanted:
        message = "nobody waits for the consolidation's result any more"
        raise ConsolidationUnwantedError(message)


def _link(source: Path, target: Path) -> None:
    """A copy of a closed shard by hard links; what RocksDB writes to is copied."""
    with local_failures(source):
        target.mkdir()
        for file in source.iterdir():
            if file.suffix == _IMMUTABLE_SUFFIX:
                link_or_copy(file, target / file.name)
            else:
                shutil.copyfile(file, target / file.name)


def _size_bytes(directory: Path) -> int:
    with local_failures(directory):
        return sum(file.stat().st_size for file in directory.iterdir())


def _index(consolidation: ConsolidationDirectory) -> None:
    """Remember what the new shard's files contain, so that the next checkpoint need not read them for that."""
    with local_failures(consolidation.path):
        known = known_hashes([consolidation.path])
        files = [(path, FileIdentity.of(path)) for path in sorted(consolidation.shard.glob(f"*{_IMMUTABLE_SUFFIX}"))]
        write_index(
            consolidation.path,
            [
                IndexedFile(str(path.relative_to(consolidation.path)), identity, known.get(identity) or hash_file(path))
                for path, identity in files
            ],
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's whole life; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m state.consolidator", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--watched", type=int, required=True, help="id of the process to end with")
    parser.add_argument("--processing-time-ms", type=int, help="with the next one, by which entries have expired")
    parser.add_argument("--event-time-ms", type=int)
    options = parser.parse_args(arguments)
    times = options.processing_time_ms, options.event_time_ms
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.nice(_NICENESS)
    _end_with(options.watched)
    began = time.perf_counter()
    try:
        done = consolidate(options.directory, None if None in times else BatchClock(*times))
    except (KeyscaleError, OSError) as error:
        logger.warning("%s is given up: %s", options.directory, error)
        return 1
    if done:
        logger.info("%s is ready after %.1f s", options.directory, time.perf_counter() - began)
    return 0


def _end_with(process: int) -> None:
    """End this process at once when another one has ended. Its id is not used again while a handle on it is open."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(0)

    def wait() -> None:
        select.select([handle], [], [])
        os._exit(0)

    threading.Thread(target=wait, name="watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
