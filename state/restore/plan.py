"""Restore plans: the shards and changelogs of a subtask's state; pure decisions.

A plan works at any parallelism. `keyscale.state.log.recovery` has chosen the base and read the history before;
`keyscale.state.restore.rebuild` carries the plan out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from keyscale.errors import KeyscaleError

from ..documents.log_entries import BatchCommitted
from ..documents.state_version import NO_BATCH, StateVersion, base_lineage
from ..keyed.schema import merge_schemas
from ..keys.key_groups import KeyGroupRange
from ..log.commit_log import CommitLog
from ..log.resolution import OperatorHistory
from ..operator_state.operator_files import OperatorStatePlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keyscale.identifiers import BatchId, OperatorUid, SubtaskIndex

    from ..documents.changelog import ChangelogHandle
    from ..documents.manifest import ShardHandle, SnapshotHandle
    from ..keyed.schema import KeyedSchema
    from ..keys.key_group_ranges import KeyGroupRanges
    from ..layout import Layout
    from ..objects.object_store import ObjectStore


class _Part(Protocol):
    @property
    def key_groups(self) -> KeyGroupRange: ...


Part = TypeVar("Part", bound=_Part)


class CoverError(KeyscaleError):
    """Snapshots miss or double a key group.

    A restore would lose or double state.
    """

    code = "STATE_KEY_GROUPS_NOT_COVERED"
    advice = "Restore from another checkpoint, and report this with the manifest's location."


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The parts of one subtask's state. Small and picklable.

    Attributes:
        snapshots: Snapshots whose shards intersect the subtask's key group range; none for an operator without state.
        changelogs: Applied after them in this order, clipped to the range.
        operator_state: The files of its operator state.
    """

    snapshots: tuple[SnapshotHandle, ...] = ()
    changelogs: tuple[ChangelogHandle, ...] = ()
    operator_state: OperatorStatePlan = field(default_factory=OperatorStatePlan)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore."""
        files = self.operator_state.files
        return not (self.snapshots or self.changelogs or any(file is not None for file in files))

    @property
    def last_batch_id(self) -> BatchId:
        """The last batch known to have changed the state; -1 before any."""
        batches = [part.batch_id for part in self.snapshots] + [part.batch_id for part in self.changelogs]
        return max(batches, default=NO_BATCH)

    def schemas(self) -> list[KeyedSchema | None]:
        """Returns the schemas of all parts."""
        return [*(part.schema for part in self.snapshots), *(part.schema for part in self.changelogs)]

    def followed_by(self, changelog: ChangelogHandle | None) -> RestorePlan:
        """Returns the plan after one more batch (None: an unchanged state)."""
        if changelog is None:
            return self
        operator_state = self.operator_state.followed_by(changelog.operator_state)
        return RestorePlan(self.snapshots, (*self.changelogs, changelog), operator_state)

    def rebased(self, snapshots: Sequence[SnapshotHandle], index: int, batch_id: BatchId) -> RestorePlan:
        """Returns a plan of the same state from a newer checkpoint.

        Args:
            snapshots: The checkpoint's snapshots of all subtasks, by index. The checkpoint is this attempt's.
            index: The subtask's index.
            batch_id: The last batch that the checkpoint contains.
        """
        later = tuple(changelog for changelog in self.changelogs if changelog.batch_id > batch_id)
        operator_state = self.operator_state
        if operator_state.needs_redistribution:  # a batch of this attempt has yet to store it
            operator_state = replace(operator_state, files=tuple(each.operator_state_file for each in snapshots))
        elif all(changelog.operator_state is None for changelog in later):
            operator_state = OperatorStatePlan((snapshots[index].operator_state_file,))
        return RestorePlan((snapshots[index],), later, operator_state)


@dataclass(frozen=True, slots=True)
class DeferredPlan:
    """A plan that is loaded only for a rebuild.

    Attributes:
        operator_state: The plan's files of operator state, which are always needed.
        load: Returns the plan.
    """

    operator_state: OperatorStatePlan
    load: Callable[[], RestorePlan]


@dataclass(frozen=True, slots=True)
class ShardAssignment:
    """A shard that a subtask takes over, and its own key groups.

    The subtask may own fewer key groups than the shard has.
    """

    shard: ShardHandle
    key_groups: KeyGroupRange

    @property
    def clipped(self) -> bool:
        return self.key_groups != self.shard.key_groups


def plan_subtask(history: OperatorHistory, key_groups: KeyGroupRange) -> RestorePlan:
    """Returns the part of an operator's history that a subtask needs."""
    return RestorePlan(
        snapshots=tuple(snapshot for snapshot in history.snapshots if snapshot.key_groups.intersection(key_groups)),
        changelogs=tuple(
            changelog for changelog in history.changelogs if changelog.key_groups.intersection(key_groups)
        ),
        operator_state=OperatorStatePlan(history.operator_state, inherited=True),
    )


def plan_operator(history: OperatorHistory, ranges: KeyGroupRanges) -> list[RestorePlan]:
    """Returns the plan of every subtask, by index.

    Raises:
        CoverError: The history's snapshots miss or double a key group.
    """
    assign_shards(history.snapshots, ranges)
    snapshots = by_subtask(history.snapshots, ranges)
    changelogs = by_subtask(history.changelogs, ranges)
    operator_state = OperatorStatePlan(history.operator_state, inherited=True)
    return [
        RestorePlan(tuple(of_snapshots), tuple(of_changelogs), operator_state)
        for of_snapshots, of_changelogs in zip(snapshots, changelogs, strict=True)
    ]


def history_of(plans: Sequence[RestorePlan]) -> OperatorHistory:
    """Returns the history that the plans of all subtasks divide.

    It is the reverse of `plan_operator`, for a rescale without a restore. The history has no declaration.

    Args:
        plans: The plan of every subtask, by index, all after the same batch.
    """
    snapshots = {(each.key_groups, each.lineage): each for plan in plans for each in plan.snapshots}
    changelogs = {each.path: each for plan in plans for each in plan.changelogs}
    states = [plan.operator_state for plan in plans]
    undivided = next((state.files for state in states if state.needs_redistribution), None)
    return OperatorHistory(
        snapshots=tuple(snapshots[key] for key in sorted(snapshots)),
        changelogs=tuple(sorted(changelogs.values(), key=lambda each: (each.batch_id, each.subtask))),
        schema=merge_schemas([schema for plan in plans for schema in plan.schemas()]),
        operator_state=undivided
        or tuple(None if state.inherited or not state.files else state.files[0] for state in states),
    )


def followed_in_log(
    plan: RestorePlan,
    store: ObjectStore,
    layout: Layout,
    uid: OperatorUid,
    subtask: SubtaskIndex,
    *,
    after: int,
    until: int,
) -> RestorePlan:
    """Returns a subtask's plan followed by batches of the commit log.

    Args:
        plan: The plan as of the log's position `after`.
        store: The job's object store.
        layout: The job's paths.
        uid: The operator.
        subtask: Its subtask.
        after: The last position that the plan contains.
        until: The last position that the result contains.

    Raises:
        LogGapError: An entry is missing.
        DocumentCorruptError: An entry is damaged.
    """
    for entry in CommitLog(store, layout).between(after, until):
        if isinstance(entry, BatchCommitted):
            plan = plan.followed_by(entry.operators[uid][subtask])
    return plan


def by_subtask(parts: Iterable[Part], ranges: KeyGroupRanges) -> list[list[Part]]:
    """Returns the parts of a state that each subtask needs, by index.

    A part is given to each subtask with a key group of the part, in the order of the parts. Key groups beyond the max
    parallelism belong to no subtask.
    """
    needed: list[list[Part]] = [[] for _ in ranges]
    for part in parts:
        groups = part.key_groups.intersection(KeyGroupRange(0, ranges.max_parallelism - 1))
        if groups is None:
            continue
        for index in range(ranges.subtask_of(groups.start), ranges.subtask_of(groups.end) + 1):
            needed[index].append(part)
    return needed


def version_of(plan: RestorePlan, key_groups: KeyGroupRange, batch_id: BatchId) -> StateVersion:
    """Returns the version of a plan's state after the given batch."""
    lineage = base_lineage(key_groups, ((snapshot.key_groups, snapshot.lineage) for snapshot in plan.snapshots))
    version = StateVersion(batch_id, lineage)
    for changelog in plan.changelogs:
        version = version.advanced(batch_id, changelog.path)
    return version


def changelogs_after(plan: RestorePlan, key_groups: KeyGroupRange, lineage: str) -> tuple[ChangelogHandle, ...] | None:
    """Returns the changelogs of a plan that a state lacks.

    Args:
        plan: Leads to the wanted state.
        key_groups: The key groups of both states.
        lineage: The lineage of the state at hand.

    Returns:
        The changelogs that lead from it to the wanted state; None if the plan does not pass through it.
    """
    version = version_of(replace(plan, changelogs=()), key_groups, NO_BATCH)
    for number, changelog in enumerate(plan.changelogs):
        if version.lineage == lineage:
            return plan.changelogs[number:]
        version = version.advanced(NO_BATCH, changelog.path)
    return () if version.lineage == lineage else None


def assign_shards(snapshots: Sequence[SnapshotHandle], ranges: KeyGroupRanges) -> list[tuple[ShardAssignment, ...]]:
    """Decides which shards each new subtask takes over.

    Records are neither moved nor rewritten.

    Returns:
        The assignments of each subtask, by index. Without snapshots (an operator without state) every subtask starts
        empty.

    Raises:
        CoverError: The snapshots' shards miss or double a key group.
    """
    if not snapshots:
        return [() for _ in ranges]
    check_cover([snapshot.key_groups for snapshot in snapshots], KeyGroupRange(0, ranges.max_parallelism - 1))
    shards = by_subtask((shard for each in snapshots for shard in each.shards), ranges)
    return [_assigned(of_subtask, own) for of_subtask, own in zip(shards, ranges, strict=True)]


def assign_to_range(snapshots: Sequence[SnapshotHandle], key_groups: KeyGroupRange) -> tuple[ShardAssignment, ...]:
    """Returns the shards that a subtask takes over, ordered by key group.

    Raises:
        CoverError: The shards miss or double a key group of the range.
    """
    return _assigned([shard for snapshot in snapshots for shard in snapshot.shards], key_groups) if snapshots else ()


def _assigned(shards: Iterable[ShardHandle], key_groups: KeyGroupRange) -> tuple[ShardAssignment, ...]:
    assignments = [
        ShardAssignment(shard, own)
        for shard in shards
        if (own := shard.key_groups.intersection(key_groups)) is not None
    ]
    check_cover([assignment.key_groups for assignment in assignments], key_groups)
    return tuple(sorted(assignments, key=lambda assignment: assignment.key_groups))


def check_cover(parts: Iterable[KeyGroupRange], whole: KeyGroupRange) -> None:
    """Checks that parts cover every key group of a range exactly once.

    Raises:
        CoverError: They do not; the message names the missing, doubled and foreign key groups.
    """
    wrong = []
    expected = whole.start
    for part in sorted(parts):
        if part.start > expected:
            wrong.append(f"{expected} to {min(part.start - 1, whole.end)} missing")
        elif part.start < expected:
            kind = "doubled" if part.start >= whole.start else "foreign"
            wrong.append(f"{part.start} to {min(part.end, expected - 1)} {kind}")
        expected = max(expected, part.end + 1)
    if expected <= whole.end:
        wrong.append(f"{expected} to {whole.end} missing")
    elif expected > whole.end + 1:
        wrong.append(f"{whole.end + 1} to {expected - 1} foreign")
    if wrong:
        raise CoverError(f"of key groups {whole.start} to {whole.end}: {', '.join(wrong)}")
