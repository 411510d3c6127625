"""The calls of the product by which rare states are seen, and the moments at which the loss of a driver is one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from keyscale.jobs.runtime.batch.runner import BatchRunner
from keyscale.jobs.runtime.driver import attempt, checkpoints, execution, resume_plan, retention_runner
from keyscale.jobs.runtime.driver.batch_loop import BatchLoop
from keyscale.jobs.runtime.driver.coordinator import Coordinator
from keyscale.jobs.runtime.errors import CheckpointNotBegunError, CheckpointsFailingError, CheckpointTimeoutError
from keyscale.jobs.sinks import kafka_output, postgres
from keyscale.jobs.sinks.kafka_output import KafkaOutput
from keyscale.jobs.sinks.postgres import PostgresSink
from keyscale.jobs.sinks.published import Step
from keyscale.state.documents import manifest
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.documents.manifest import ManifestTakenError
from keyscale.state.log import commit_log, recovery
from keyscale.state.log.commit_log import CommitLog, FencedError, LogGapError
from keyscale.state.log.resolution import BaseDisownedError
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state.operator_state import operator_files
from keyscale.state.retention.deletion_plan import RetentionError
from keyscale.state.subtask import store
from keyscale.state.subtask.store import SubtaskStore
from tests.simulation import sink_model
from tests.simulation.object_store import StoreClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Watched:
    """A call of the product by which a state is seen.

    Attributes:
        state: The state.
        owner: What has the function.
        name: The function's name.
        is_reached: Whether the state is reached, by what the call returns or raises, and by its arguments.
    """

    state: str
    owner: Any
    name: str
    is_reached: Callable[[Any, tuple[Any, ...]], bool]


def raised(*kinds: type[BaseException]) -> Callable[[Any, tuple[Any, ...]], bool]:
    return lambda result, _: isinstance(result, kinds)


def returned(result: Any, _: tuple[Any, ...]) -> bool:
    return result is not None and result is not False and not isinstance(result, BaseException)


def not_raised(result: Any, _: tuple[Any, ...]) -> bool:
    return not isinstance(result, BaseException)


def _is_opened(result: Any) -> bool:
    return isinstance(result, attempt.OpenAttempt)


def _replays_two_parallelisms(result: Any, _: tuple[Any, ...]) -> bool:
    if not _is_opened(result):
        return False
    changelogs = chain.from_iterable(history.changelogs for history in result.resume.operators.values())
    ranges = sorted({(each.key_group_start, each.key_group_end) for each in changelogs})
    return any(before[1] >= after[0] for before, after in pairwise(ranges))


def _fetched(links: bool) -> Callable[[Any, tuple[Any, ...]], bool]:
    def seen(result: Any, _: tuple[Any, ...]) -> bool:
        if isinstance(result, BaseException) or result.fetched is None:
            return False
        return bool(result.fetched.linked_files if links else result.fetched.downloaded_files)

    return seen


WATCHED = (
    Watched("an attempt opened in a gap of the log", CommitLog, "_check_end", raised(FencedError)),
    Watched("an attempt came too late to open", resume_plan, "check_fit", raised(FencedError)),
    Watched("an idle driver saw that it was overtaken", Coordinator, "_check_fence", raised(FencedError)),
    Watched("a run opened again in its process", execution, "reopen_attempt", returned),
    Watched("a run that opened again was overtaken", execution, "reopen_attempt", raised(FencedError)),
    Watched(
        "a base was passed over, as the history continues from another",
        recovery,
        "_pass_over",
        lambda _, given: isinstance(given[2], BaseDisownedError),
    ),
    Watched(
        "a base was passed over, as its log is gone",
        recovery,
        "_pass_over",
        lambda _, given: isinstance(given[2], LogGapError),
    ),
    Watched("a restoring run fell back to an older checkpoint", execution, "fall_back", returned),
    Watched("a restore was found carried out", resume_plan, "_is_carried_out", returned),
    Watched(
        "an attempt began with output to publish",
        execution,
        "open_attempt",
        lambda result, _: _is_opened(result) and bool(result.resume.sinks),
    ),
    Watched("changelogs of two parallelisms were replayed", execution, "open_attempt", _replays_two_parallelisms),
    Watched("a checkpoint failed", checkpoints.Checkpoints, "take", raised(Exception)),
    Watched("a checkpoint ran out of time", checkpoints.Checkpoints, "take", raised(CheckpointTimeoutError)),
    Watched("a checkpoint waited in vain", checkpoints.Checkpoints, "take", raised(CheckpointNotBegunError)),
    Watched("a manifest's place was taken", checkpoints, "write_manifest", raised(ManifestTakenError)),
    Watched("a savepoint was found that was taken already", checkpoints.Checkpoints, "find_savepoint", returned),
    Watched("checkpoints failed too often", Coordinator, "_take_periodic", raised(CheckpointsFailingError)),
    Watched("a stop failed and the job read on", Coordinator, "_stop_with_savepoint", raised(Exception)),
    Watched(
        "a clean-up saw at its last look that it was overtaken",
        retention_runner,
        "delete_planned",
        lambda result, given: returned(result, given) and bool(given[1].manifests) and not result.objects,
    ),
    Watched(
        "a clean-up was stopped by what it could not read", retention_runner, "plan_deletion", raised(RetentionError)
    ),
    Watched("an open store was used again", SubtaskStore, "resume", returned),
    Watched("an open store was at another version", SubtaskStore, "resume", lambda result, _: result is False),
    Watched("local files were opened again", store, "reopen_shards", returned),
    Watched("a consolidated shard was taken over", store, "take_over", returned),
    Watched("state was rebuilt of files on the host", store, "rebuild_shards", _fetched(links=True)),
    Watched("state was rebuilt of downloaded files", store, "rebuild_shards", _fetched(links=False)),
    Watched(
        "operator state was divided among another number of subtasks",
        operator_files,
        "redistribute",
        lambda _, given: len(given[0]) != given[1] and any(each.states for each in given[0]),
    ),
    Watched(
        "the first batch of an attempt was of time alone",
        BatchLoop,
        "fire_timers",
        lambda result, given: result is True and given[0]._status.commits == 1,
    ),
    Watched("an overtaken driver discarded its output", BatchRunner, "discard", not_raised),
    Watched(
        "a share was found written already",
        KafkaOutput,
        "step",
        lambda result, given: result is Step.DONE and given[0]._share is not None,
    ),
    *(
        Watched("a sink refused an older attempt's batch", module, "next_step", lambda result, _: result is Step.REFUSE)
        for module in (sink_model, postgres, kafka_output)
    ),
    Watched("staged rows were moved to a table again", PostgresSink, "_publish_staged", not_raised),
    Watched("rows were taken back from a table", PostgresSink, "_take_back", not_raised),
    Watched("a damaged file was refused", StoreClient, "_check", raised(ObjectCorruptError)),
    Watched("a damaged manifest was refused", manifest, "decode_document", raised(DocumentCorruptError)),
    Watched("a damaged entry of the log was refused", commit_log, "decode_document", raised(DocumentCorruptError)),
)

AT_MOMENTS = {
    "batch.planned": "a driver was lost between plan and commit",
    "batch.changelog_written": "a driver was lost between plan and commit",
    "batch.ran": "a driver was lost between plan and commit",
    "log.appended": "a driver was lost between commit and publication",
    "batch.committed": "a driver was lost between commit and publication",
    "sink.publish.before": "a driver was lost between commit and publication",
    "checkpoint.linked": "a driver was lost in the middle of a checkpoint",
    "snapshot.file_uploaded": "a driver was lost in the middle of a checkpoint",
    "checkpoint.uploaded": "a driver was lost in the middle of a checkpoint",
    "checkpoint.publishing": "a driver was lost in the middle of a checkpoint",
    "checkpoint.published": "a driver was lost between a manifest and its report",
    "message.report.before": "a driver was lost between a manifest and its report",
    "retention.manifests_deleted": "a driver was lost in the middle of a clean-up",
    "run.fenced": "a driver was lost between its fence and its restore",
    "sink.recover.before": "a driver was lost between its fence and its restore",
}
"""What it means that a process dies or stops at a moment."""


def watching(world: World) -> list[tuple[Any, str, object]]:
    """Returns what has to be put in place so that a world notes the states of calls."""
    places: dict[tuple[int, str], list[Watched]] = {}
    for each in WATCHED:
        places.setdefault((id(each.owner), each.name), []).append(each)
    return [(of[0].owner, of[0].name, _observed(world, of)) for of in places.values()]


def _observed(world: World, watched: list[Watched]) -> object:
    owner, name = watched[0].owner, watched[0].name
    found = owner.__dict__[name]
    function: Any = found.__func__ if isinstance(found, staticmethod) else found

    def saw(result: Any, given: tuple[Any, ...]) -> None:
        if world.is_over:
            return
        for each in watched:
            if each.is_reached(result, given):
                world.reach(each.state)

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            result = function(*given, **named)
        except Exception as error:
            saw(error, given)
            raise
        saw(result, given)
        return result

    return staticmethod(call) if isinstance(found, staticmethod) else call
