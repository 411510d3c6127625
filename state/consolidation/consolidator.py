"""The consolidator: a process that rewrites a subtask's shards as one.

It runs as `python -m keyscale.state.consolidation.consolidator <directory>` beside the batches, works on hard links at
a low priority, and ends with the watched process. If it is killed, its files are recognized as garbage and removed when
the subtask is next opened.
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
import uuid
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint

from ..engine.engine import SortedRun
from ..engine.rocksdb import RocksDbEngine
from ..engine.rocksdb_settings import MEBIBYTE
from ..errors import StoreCorruptError
from ..keyed.batch_clock import BatchClock
from ..keyed.cleanup import Occasion, expired_entries, purge_all
from ..keyed.schema import merge_schemas
from ..local.damage import give_up_local_files
from ..local.file_index import (
    FileIdentity,
    IndexedFile,
    hash_file,
    known_hashes,
    link_or_copy,
    write_index,
)
from ..local.subtask_directory import CleanMarker, LocalShard, boot_id, local_failures
from ..restore.rebuild import replay
from ..snapshot.snapshot import IMMUTABLE_SUFFIX
from .catch_up_log import CatchUpLog, committed_after
from .consolidation_directory import ConsolidationDirectory
from .take_over import TAKE_OVER_CHANGELOGS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from keyscale.identifiers import BatchId

    from ..engine.engine import Engine
    from ..engine.rocksdb_settings import RocksDbSettings
    from ..keyed.batch_clock import Clock
    from ..keyed.schema import KeyedSchema
    from ..keyed.ttl import Ttl
    from ..keys.key_groups import KeyGroupRange
    from .consolidation_directory import ConsolidationBase

logger = logging.getLogger(__name__)
CATCH_UP_ROUNDS_MAX = 20
LEFT_TO_TAKE_OVER_MAX = 2  # batches: the newest may be uncommitted, and another may come at any time
_MEMORY_BYTES = 64 * MEBIBYTE
_COPIED_AT_A_TIME = 100_000
_NICENESS = 10  # gets about a tenth of a core that batches keep busy; at 19 a merge on such a host would never end


class ConsolidationUnwantedError(KeyscaleError):
    """The consolidation's result is unwanted, or cannot catch up."""

    code = "STATE_CONSOLIDATION_GIVEN_UP"
    retryable = True
    advice = "Nothing to do: the subtask keeps the shards that it has, and consolidation is tried again later."


@dataclass(frozen=True, slots=True)
class _ShardVersion:
    """The version of the new shard."""

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
    """Carries out a consolidation, or lets its result catch up.

    A snapshot has begun it (`LocalSnapshot.consolidation`). The function may run in any process on the subtask's host,
    beside its batches. The subtask takes the result over when it is next opened.

    Args:
        directory: The consolidation's directory.
        clock: Entries that have expired by this clock are omitted if their TTL says so (`Cleanup.compaction`); None:
            all entries stay.

    Returns:
        Whether there is a result. If not, the consolidation was given up, or another process works on it.

    Raises:
        KeyscaleError, OSError: It failed, and was given up.
    """
    consolidation = ConsolidationDirectory(directory)
    if not consolidation.acquire():
        return False
    try:
        try:
            return _consolidate(consolidation, clock)
        except StoreCorruptError:
            consolidation.give_up()
            if directory.exists():  # else the attempt's files are being removed
                give_up_local_files(consolidation.subtask_root)
            raise
        except BaseException:
            consolidation.give_up()
            raise
        finally:
            if not consolidation.is_wanted:
                consolidation.remove()
    finally:
        consolidation.release()


def start_consolidator(directory: Path, watched: int, clock: Clock | None = None) -> None:
    """Starts a consolidation in its own process, unless one is at work.

    Args:
        directory: The consolidation's directory.
        watched: Id of a process that lives about as long as the subtask may stay on this host; the new process ends
            with it.
        clock: As for `consolidate`.
    """
    consolidation = ConsolidationDirectory(directory)
    if consolidation.is_ready and len(CatchUpLog(consolidation).entries()) <= TAKE_OVER_CHANGELOGS_MAX:
        return
    if not consolidation.acquire():
        return
    consolidation.release()
    command = [
        sys.executable,
        "-m",
        "keyscale.state.consolidation.consolidator",
        str(directory),
        f"--watched={watched}",
    ]
    if clock is not None:
        command += [f"--processing-time-ms={clock.processing_time_ms}", f"--event-time-ms={clock.event_time_ms}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    nowhere = subprocess.DEVNULL  # a Spark worker's own output is read as its protocol
    try:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=nowhere, stdout=nowhere, env=environment, start_new_session=True
        )
    except OSError:  # the host lacks the resources, which does not concern the checkpoint
        logger.warning("no process can be started to merge shards", exc_info=True)
        consolidation.give_up()
        return
    threading.Thread(target=process.wait, name="consolidator", daemon=True).start()  # leaves no zombie


def merge_shards(
    target: Engine,
    own: KeyGroupRange,
    others: Sequence[tuple[KeyGroupRange, Engine]],
    scratch: Path,
    *,
    purge: Callable[[], None] = lambda: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Merges other shards' key groups into an engine, and compacts it.

    The engine then holds exactly its own key groups and those shards'. Without other shards this is a trim: records
    pass through Python only if there is something to purge.

    Args:
        target: A shard's engine.
        own: The key groups that it serves so far.
        others: Further shards of disjoint ranges, which are only read.
        scratch: An existing directory for temporary files.
        purge: Called before the compaction; may remove entries that are no longer visible.
        check: Called now and then; ends the work by raising.
    """
    target.delete_range(b"", own.start_key)
    target.delete_range(own.end_key, None)
    failpoint("consolidate.clipped")
    for key_groups, other in others:
        for family in other.families():
            for run in _runs(other, family, key_groups):
                check()
                file = scratch / f"{uuid.uuid4().hex}.sst"
                try:
                    target.write_sorted_file(run, file)
                    target.ingest(family, [file])
                finally:
                    file.unlink(missing_ok=True)
                failpoint("consolidate.part_copied")
    failpoint("consolidate.copied")
    purge()
    check()
    target.compact()
    failpoint("consolidate.compacted")


def _consolidate(consolidation: ConsolidationDirectory, clock: Clock | None) -> bool:
    base, ready = consolidation.base(), consolidation.ready()
    if base is None or not consolidation.is_wanted or consolidation.has_died:
        consolidation.give_up()
        return False
    version = _ShardVersion.of(base if ready is None else ready)
    settings = replace(base.settings, memory_budget_bytes=min(_MEMORY_BYTES, base.settings.memory_budget_bytes))
    with local_failures(consolidation.path):
        consolidation.mark_started()
        consolidation.unmark_ready()
    failpoint("consolidate.started")
    if ready is None:
        _build(consolidation, base, settings, clock)
    with closing(RocksDbEngine(consolidation.shard, settings)) as engine:
        version = _catch_up(consolidation, base.key_groups, engine, version)
        engine.flush()
    _index(consolidation)
    failpoint("consolidate.closed")
    with local_failures(consolidation.path):
        consolidation.mark_ready(version.marker(consolidation.shard, base.key_groups))
    failpoint("consolidate.ready")
    return True


def _build(
    consolidation: ConsolidationDirectory, base: ConsolidationBase, settings: RocksDbSettings, clock: Clock | None
) -> None:
    """Builds the new shard, at the snapshot's version, from the largest shard.

    The largest shard is only clipped and compacted.
    """
    snapshot = Path(base.snapshot)
    sizes = [_size_bytes(snapshot / shard.directory) for shard in base.shards]
    largest = sizes.index(max(sizes))
    directories = [consolidation.path / f"source-{number}" for number in range(len(sizes))]
    directories[largest] = consolidation.shard
    for shard, directory in zip(base.shards, directories, strict=True):
        _link(snapshot / shard.directory, directory)
    failpoint("consolidate.linked")
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
    failpoint("consolidate.built")


def _purge(engine: Engine, base: ConsolidationBase, clock: Clock | None) -> None:
    if clock is None:
        return
    expired = expired_entries(base.schema, base.ttls, clock, Occasion.COMPACTION)
    families = engine.families()
    purge_all(engine, {family: check for family, check in expired.items() if family in families})


def _catch_up(
    consolidation: ConsolidationDirectory, key_groups: KeyGroupRange, engine: Engine, version: _ShardVersion
) -> _ShardVersion:
    """Applies committed changelogs until the shard is nearly up to date."""
    log = CatchUpLog(consolidation)
    for _ in range(CATCH_UP_ROUNDS_MAX):
        _check_wanted(consolidation)
        entries = committed_after(log.entries(), version.lineage)
        if entries:
            handles = log.handles(entries)
            replay(log.objects, handles, key_groups, engine, consolidation.path / "replay")
            log.forget(entries)
            schema = merge_schemas([version.schema, *(handle.schema for handle in handles)])
            version = _ShardVersion(entries[-1].batch_id, entries[-1].after, schema, version.ttls)
        failpoint("consolidate.caught_up")
        # Counted in batches, because retried tasks leave changelogs that later changelogs never build on.
        left = {entry.batch_id for entry in log.entries() if entry.batch_id > version.batch_id}
        if len(left) <= LEFT_TO_TAKE_OVER_MAX:
            return version
    raise ConsolidationUnwantedError("the batches are faster than the consolidation that must catch up with them")


def _check_wanted(consolidation: ConsolidationDirectory) -> None:
    if not consolidation.is_wanted:
        raise ConsolidationUnwantedError("the consolidation's result is no longer wanted")


def _runs(engine: Engine, family: str, key_groups: KeyGroupRange) -> Iterator[SortedRun]:
    entries = engine.scan(family, key_groups.start_key, key_groups.end_key)
    while part := list(islice(entries, _COPIED_AT_A_TIME)):
        yield SortedRun(family, [key for key, _ in part], [value for _, value in part])


def _link(source: Path, target: Path) -> None:
    """Copies a closed shard by hard links.

    Files that RocksDB writes to are copied.
    """
    with local_failures(source):
        target.mkdir()
        for file in source.iterdir():
            if file.suffix == IMMUTABLE_SUFFIX:
                link_or_copy(file, target / file.name)
            else:
                shutil.copyfile(file, target / file.name)


def _size_bytes(directory: Path) -> int:
    with local_failures(directory):
        return sum(file.stat().st_size for file in directory.iterdir())


def _index(consolidation: ConsolidationDirectory) -> None:
    """Writes an index of the new shard's files, for the next checkpoint."""
    with local_failures(consolidation.path):
        known = known_hashes([consolidation.path])
        files = [(path, FileIdentity.of(path)) for path in sorted(consolidation.shard.glob(f"*{IMMUTABLE_SUFFIX}"))]
        write_index(
            consolidation.path,
            [
                IndexedFile(str(path.relative_to(consolidation.path)), identity, known.get(identity) or hash_file(path))
                for path, identity in files
            ],
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m keyscale.state.consolidation.consolidator", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--watched", type=int, required=True, help="id of the process to end with")
    parser.add_argument("--processing-time-ms", type=int, help="processing time by which entries expire")
    parser.add_argument("--event-time-ms", type=int, help="event time by which entries expire; needs the other one")
    options = parser.parse_args(arguments)
    times = options.processing_time_ms, options.event_time_ms
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.nice(_NICENESS)
    _end_with(options.watched)
    began = time.perf_counter()
    try:
        done = consolidate(options.directory, None if None in times else BatchClock(*times))
    except (KeyscaleError, OSError) as error:
        logger.warning("giving up %s: %s", options.directory, error)
        return 1
    if done:
        logger.info("%s is ready after %.1f s", options.directory, time.perf_counter() - began)
    return 0


def _end_with(process: int) -> None:
    """Ends this process as soon as another process has ended.

    An open descriptor keeps the other process's id from being reused.
    """
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(0)

    def wait() -> None:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll()
        os._exit(0)

    threading.Thread(target=wait, name="watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
