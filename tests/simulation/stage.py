"""The played parts in the places of the real ones: Spark, worker processes, the engine and the store."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keyscale.api import store_check
from keyscale.api.lifecycle import reconciler
from keyscale.api.maintenance import object_removal, savepoint_release, snapshot_removal
from keyscale.jobs.runtime.control import reporter
from keyscale.jobs.runtime.driver import execution, job_run, retention_runner, store_watch, timer_loop
from keyscale.jobs.runtime.executor import subtask_jobs, worker
from keyscale.state.consolidation import consolidator
from keyscale.state.local import subtask_directory
from keyscale.state.restore import opened_shards
from keyscale.state.retention import deletion_plan
from keyscale.state.snapshot import expired_copy, snapshot
from keyscale.state.subtask import store as store_module
from keyscale.state.subtask.open_store_cache import OpenStoreCache
from tests.simulation import file_sink, interposition, kafka_sink, postgres_sink, spark
from tests.simulation.descriptors import HOLDERS, Descriptors
from tests.simulation.local_engine import LocalEngine
from tests.simulation.object_store import StoreClient
from tests.support.rehearsal.rehearsal import parts_without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from keyscale.state.engine.engine import Engine
    from tests.simulation.object_store import StoreModel
    from tests.simulation.world import World

# Times of the product that are shorter or longer here, so that little of a history is waiting.
HEARTBEAT_SECONDS = 4.0
TIMER_POLL_SECONDS = 1.0
AGE_FLOOR_MS = 150_000
RETENTION_FIRST_SECONDS = 15.0
RETENTION_INTERVAL_SECONDS = 40.0
REMOVAL_SETTLED_MS = 200_000


class InlineWork:
    """In the place of `BackgroundWork`: the work is done at once."""

    def __init__(self, _directory: Path, work: Callable[[], bytes]) -> None:
        self._work = work

    def result(self, _wait_seconds: float) -> bytes | None:
        return self._work()


class _NoExchange:
    def claim(self, _subtask: int) -> None:
        return

    def claim_free(self, _subtask: int) -> None:
        return


@contextmanager
def played(world: World, store: StoreModel, patches: list[tuple[Any, str, object]] | None = None) -> Iterator[None]:
    """Puts the played parts in place until the block ends.

    Args:
        world: The world.
        store: The store.
        patches: Further attributes of the product to replace, such as a guard that a control switches off.
    """
    descriptors = Descriptors(world)
    linked: dict[Path, int] = {}
    LocalEngine.world = world
    LocalEngine.holders = {}

    def open_store(_url: str, *, get_bytes_max: int | None = None) -> StoreClient:
        return StoreClient(store, world.process, get_bytes_max=get_bytes_max)

    def open_stores_of(_process: int) -> OpenStoreCache:
        resources = world.process.resources
        if "open stores" not in resources:
            resources["open stores"] = OpenStoreCache()
        found: OpenStoreCache = resources["open stores"]
        return found

    def resources_of(_process: int, uid: str) -> dict[str, Any]:
        found: dict[str, Any] = world.process.resources.setdefault("of operators", {}).setdefault(uid, {})
        return found

    def start_consolidator(directory: Path, _watched: int, clock: Any = None) -> None:
        process = world.process

        def run() -> None:
            world.sleep(world.chance.choice((0.1, 2.0, 20.0)))
            try:
                if consolidator.consolidate(directory, clock):
                    world.reach("a consolidation was completed")
            except Exception as error:  # noqa: BLE001 - as the consolidator's process does
                world.trace.note(world, f"consolidation given up: {error}")
                world.reach("a consolidation was given up")

        world.spawn(process, "consolidator", run)

    def link_snapshot(directory: Path, shards: Sequence[Engine]) -> None:
        linked[directory] = len(linked) + 1  # in the place of the time, which differs from run to run
        snapshot.link_snapshot(directory, shards)

    execution_parts: list[tuple[Any, str, object]] = [
        *parts_without_spark(),
        (execution, "IdleQueries", spark.PlayedIdleQueries),
        (execution, "ProgressWatch", spark.PlayedIdleQueries),
        (job_run, "start_workers", lambda *_: None),
        (reporter, "HEARTBEAT_INTERVAL_SECONDS", HEARTBEAT_SECONDS),
        (store_watch, "_POLL_SECONDS", 10.0),
        (timer_loop, "_POLL_SECONDS", TIMER_POLL_SECONDS),
        (retention_runner, "FIRST_SECONDS", RETENTION_FIRST_SECONDS),
        (retention_runner, "INTERVAL_SECONDS", RETENTION_INTERVAL_SECONDS),
        (deletion_plan, "AGE_FLOOR_MS", AGE_FLOOR_MS),
        (object_removal, "SETTLED_MS", REMOVAL_SETTLED_MS),
        (savepoint_release, "RETRY_S", 0.0),
        (snapshot_removal, "RETRY_S", 0.0),
        (reconciler, "ThreadPoolExecutor", lambda *_, **__: interposition.SpawningExecutor(world)),
        (store_check, "wait", lambda futures, _: SimpleNamespace(done=futures)),
    ]
    worker_parts: list[tuple[Any, str, object]] = [
        (worker, "_open_stores_of", open_stores_of),
        (worker, "_object_store_of", lambda _process, url: open_store(url)),
        (worker, "_resources_of", resources_of),
        (worker, "socket_exchange", _NoExchange),
        (subtask_jobs, "BackgroundWork", InlineWork),
        (subtask_jobs, "start_consolidator", start_consolidator),
    ]
    state_parts: list[tuple[Any, str, object]] = [
        (opened_shards, "FilteredEngine", LocalEngine),
        (expired_copy, "RocksDbEngine", LocalEngine),
        (consolidator, "RocksDbEngine", LocalEngine),
        (OpenStoreCache, "_watch", lambda _: None),
        (store_module, "link_snapshot", link_snapshot),
        (subtask_directory, "_modified_ns", lambda path: linked.get(path, 0)),
        *((module, "os", descriptors) for module in HOLDERS),
    ]
    further = [
        *file_sink.patches(world),
        *kafka_sink.patches(world),
        *postgres_sink.patches(world),
        *execution_parts,
        *worker_parts,
        *state_parts,
        *interposition.defaults_in(world),
        *(patches or ()),
    ]
    with interposition.in_place(world, open_store, further):
        try:
            yield
        finally:
            descriptors.close_all()
