"""Operator state is as durable as keyed state: through changelogs, checkpoints, restarts and any rescale."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt, JobId, SubtaskIndex
from keyscale.state.documents.manifest import FileHandle, SnapshotHandle, read_manifest
from keyscale.state.errors import DescriptorError, StateSchemaMismatchError
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.log.resolution import HistoryError, files_after, resolve
from keyscale.state.objects.errors import ObjectCorruptError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.operator_state.backend import OperatorStateBackend
from keyscale.state.operator_state.operator_files import OperatorStatePlan, open_operator_state
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from tests.support.state.state_job import JOB, StateJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore

SPLIT = ListStateDescriptor("split", pa.int64())
UNION = ListStateDescriptor("union", pa.string())
RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
A_DAY_MS = 86_400_000


@pytest.mark.parametrize("plan", [OperatorStatePlan(), OperatorStatePlan((None, None), inherited=True)])
def test_a_subtask_without_files_starts_without_operator_state(tmp_path: Path, plan: OperatorStatePlan) -> None:
    assert open_operator_state(LocalObjectStore(tmp_path), plan, SubtaskIndex(0), 2).is_empty


def test_a_broadcast_map_restores_keys_that_are_lists() -> None:
    declared, key = MapStateDescriptor("m", pa.list_(pa.list_(pa.int64())), pa.string()), ((1, 2), ())
    before = OperatorStateBackend()
    before.broadcast_state(declared).put(key, "value")
    restored = OperatorStateBackend(before.snapshot()).broadcast_state(declared)
    assert (restored.get(key), list(restored.keys())) == ("value", [key])


@pytest.mark.parametrize("key_type", [pa.struct([("a", pa.int64())]), pa.list_(pa.struct([("a", pa.int64())]))])
def test_a_broadcast_map_refuses_keys_with_structs(key_type: pa.DataType) -> None:
    with pytest.raises(DescriptorError, match="cannot be or contain structs"):
        OperatorStateBackend().broadcast_state(MapStateDescriptor("m", key_type, pa.string()))


def test_a_redistributed_state_counts_as_restored_until_it_is_stored() -> None:
    earlier = OperatorStateBackend()
    earlier.list_state(SPLIT).add(1)
    before = earlier.snapshot()
    restored = OperatorStateBackend(before, before)
    assert restored.is_restored
    assert restored.changed() == before, "it is stored although no function has changed it"
    assert (restored.is_restored, restored.changed()) == (False, None)
    restored.list_state(SPLIT).add(2)
    assert not restored.is_restored
    stored = restored.changed()
    assert stored is not None
    assert len(stored.states["split"].items) == 2
    own = OperatorStateBackend(before)
    assert (own.is_restored, own.changed(), own.list_state(SPLIT).get()) == (False, None, [1])
    own.list_state(SPLIT).add(2)
    assert not own.is_restored


def test_a_declaration_of_another_kind_or_type_of_one_name_is_refused() -> None:
    backend = OperatorStateBackend()
    rules, split = backend.broadcast_state(RULES), backend.list_state(SPLIT)
    assert (backend.broadcast_state(RULES), backend.list_state(SPLIT)) == (rules, split)
    for use in (
        lambda: backend.broadcast_state(MapStateDescriptor("rules", pa.string(), pa.string())),
        lambda: backend.broadcast_state(MapStateDescriptor("split", pa.string(), pa.int64())),
        lambda: backend.union_list_state(SPLIT),
        lambda: backend.list_state(ListStateDescriptor("split", pa.string())),
        lambda: backend.list_state(ListStateDescriptor("rules", pa.int64())),
    ):
        with pytest.raises(StateSchemaMismatchError, match="declared twice"):
            use()


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    made = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    made.start(2)
    return made


def run(job: StateJob, operate: Callable[[SubtaskStore], None] | None) -> None:
    job.operate = operate
    job.run_batch({1: 1})


def add_some(store: SubtaskStore) -> None:
    """Each subtask adds to its lists; all put the same entries into the map."""
    index, batch = store.spec.index, store.version.batch_id + 1
    store.operator.list_state(SPLIT).add(batch * 100 + index)
    store.operator.union_list_state(UNION).add(f"{batch}-{index}")
    store.operator.broadcast_state(RULES).put(f"rule-{batch}", batch)


def contents(job: StateJob) -> list[tuple[list[int], list[str], dict[str, int]]]:
    found = []
    for index in range(job.parallelism):
        with job.open(index) as store:
            operator = store.operator
            rules = dict(operator.broadcast_state(RULES).items())
            found.append((operator.list_state(SPLIT).get(), operator.union_list_state(UNION).get(), rules))
    return found


def all_split(job: StateJob) -> list[int]:
    return sorted(element for split, _, _ in contents(job) for element in split)


def test_a_subtask_finds_its_own_operator_state_in_the_next_batch(job: StateJob) -> None:
    run(job, add_some)
    run(job, add_some)
    assert contents(job) == [
        ([0, 100], ["0-0", "1-0"], {"rule-0": 0, "rule-1": 1}),
        ([1, 101], ["0-1", "1-1"], {"rule-0": 0, "rule-1": 1}),
    ]


def test_a_batch_that_does_not_change_operator_state_writes_none(job: StateJob) -> None:
    run(job, add_some)
    written = sum(".operator-state" in info.path for info in job.store.list(job.layout.changelogs))
    run(job, lambda store: store.operator.list_state(SPLIT).get())
    assert written == 2 == sum(".operator-state" in info.path for info in job.store.list(job.layout.changelogs))
    assert all_split(job) == [0, 1]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_rescale_splits_split_lists_unites_union_lists_and_copies_maps(job: StateJob, parallelism: int) -> None:
    run(job, add_some)
    run(job, add_some)
    job.recover(parallelism)
    assert all_split(job) == [0, 1, 100, 101]
    for split, union, rules in contents(job):
        assert len(split) in {4 // parallelism, 4 // parallelism + 1}
        assert sorted(union) == ["0-0", "0-1", "1-0", "1-1"]
        assert rules == {"rule-0": 0, "rule-1": 1}


def test_the_first_batch_of_an_attempt_stores_each_subtasks_redistributed_state(job: StateJob) -> None:
    run(job, add_some)
    job.recover(3)
    run(job, lambda store: store.operator.union_list_state(UNION).update([f"of-{store.spec.index}"]))
    job.recover(1)
    assert contents(job) == [([0, 1], ["of-0", "of-1", "of-2"], {"rule-0": 0})]


def test_a_union_list_that_no_function_takes_over_is_not_multiplied_by_restarts(job: StateJob) -> None:
    run(job, add_some)
    for parallelism in (3, 2, 4, 1):
        job.recover(parallelism)
        if parallelism != 2:
            run(job, None)  # a function that has forgotten its operator state
        job.checkpoint()
    assert contents(job) == [([0, 1], ["0-0", "0-1"], {"rule-0": 0})]


def test_a_checkpoint_before_an_attempts_first_batch_leaves_the_union_to_that_batch(job: StateJob) -> None:
    run(job, add_some)
    job.recover(3)
    job.checkpoint()
    seen: list[list[str]] = []
    run(job, lambda store: seen.append(store.operator.union_list_state(UNION).get()))
    assert [sorted(union) for union in seen] == [["0-0", "0-1"]] * 3


def test_a_checkpoint_holds_operator_state_by_itself(job: StateJob) -> None:
    run(job, add_some)
    job.checkpoint()
    run(job, None)
    job.checkpoint()
    delete_planned(job.store, plan_deletion(gather_facts(job.store, JOB, A_DAY_MS * 20_000), RetentionPolicy(1)))
    assert not list(job.store.list(job.layout.changelogs)), "the changelogs that wrote it are gone"
    assert contents(job)[0] == ([0], ["0-0"], {"rule-0": 0})
    job.recover(3)
    assert all_split(job) == [0, 1]


def test_another_job_needs_only_the_savepoint(job: StateJob, tmp_path: Path) -> None:
    run(job, add_some)
    job.recover(3)
    manifest, _ = job.checkpoint("mine")
    job.store.delete([info.path for info in job.store.list(job.layout.job) if "savepoints/" not in info.path])
    other = StateJob(job.store, tmp_path / "elsewhere", job_id=JobId("other"))
    other.start(1, manifest.path)
    split, union, rules = contents(other)[0]
    assert (sorted(split), sorted(union), rules) == ([0, 1], ["0-0", "0-1"], {"rule-0": 0})


def test_a_damaged_file_of_operator_state_is_refused(job: StateJob) -> None:
    run(job, add_some)
    (path,) = [
        info.path for info in job.store.list(job.layout.changelogs) if "-0-1-" in info.path and "operator" in info.path
    ]
    job.store.put(path, b"something else")
    with pytest.raises(ObjectCorruptError, match="operator-state"):
        job.open(0)


def test_a_checkpoint_whose_operator_state_is_missing_is_skipped(job: StateJob) -> None:
    run(job, add_some)
    first, _ = job.checkpoint()
    second, _ = job.checkpoint()
    files = [subtask.operator_state_file for subtask in second.operators[0].subtasks]
    job.store.delete([file.path for file in files if file])
    job.recover(2)
    assert job.manifest == first


def test_an_attempt_that_takes_over_only_part_of_the_state_is_refused(job: StateJob) -> None:
    """Without this guard the state of the other subtasks would be lost silently."""
    run(job, add_some)
    job.recover(3)
    run(job, None)
    log = CommitLog(job.store, job.layout)
    entries = log.read()
    position, last = entries[-1]
    handles: Any = next(iter(last.operators.values()))  # type: ignore[union-attr]
    broken = [msgspec.structs.replace(handles[0], operator_state=None), *handles[1:]]
    uid = next(iter(last.operators))  # type: ignore[union-attr]
    entries[-1] = (position, msgspec.structs.replace(last, operators={uid: broken}))
    with pytest.raises(HistoryError, match="only part of the operator state"):
        resolve(None, entries, JOB)


def test_a_file_that_a_batch_writes_replaces_the_subtasks_earlier_one() -> None:
    def file(name: str) -> FileHandle:
        return FileHandle("operator-state", name, 1, "")

    old, new = (file("a"), None), file("b")
    one, two = Attempt(1), Attempt(2)
    assert files_after(old, of=one, attempt=one, written=[None, None]) == old
    assert files_after(old, of=one, attempt=one, written=[None, new]) == (old[0], new)
    assert files_after(old, of=one, attempt=two, written=[None, None, None]) == old
    assert files_after(old, of=one, attempt=two, written=[new, new, new]) == (new, new, new)
    assert files_after(old, of=one, attempt=two, written=[new, None, new]) is None
    assert files_after((), of=None, attempt=two, written=[new, None, new]) == (new, None, new)


def test_a_manifest_without_operator_state_is_written_and_read_as_before(job: StateJob) -> None:
    run(job, None)
    manifest, _ = job.checkpoint()
    assert b"operator_state" not in job.store.get(manifest.path)
    handle = read_manifest(job.store, manifest.path).operators[0].subtasks[0]
    assert isinstance(handle, SnapshotHandle)
    assert handle.operator_state_file is None


def test_random_histories_neither_lose_nor_double_elements(job: StateJob) -> None:
    history = random.Random(7)
    added: list[int] = []
    rules: dict[str, int] = {}

    def operate(store: SubtaskStore) -> None:
        if history.random() < 0.5:
            added.append(len(added))
            store.operator.list_state(SPLIT).add(added[-1])
        store.operator.broadcast_state(RULES).put(f"r{store.version.batch_id % 3}", store.version.batch_id)
        rules[f"r{store.version.batch_id % 3}"] = store.version.batch_id

    for step in range(30):
        choice = history.random()
        if choice < 0.6:
            run(job, operate)
        elif choice < 0.8:
            job.checkpoint(f"save-{step}" if history.random() < 0.3 else None)
        else:
            job.recover(history.randint(1, 4))
        found = contents(job)
        assert sorted(element for split, _, _ in found for element in split) == added
        assert [each for _, _, each in found] == [rules] * job.parallelism
