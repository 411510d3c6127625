"""A process that trims, merges or takes over is lost at every step: the next batch is right, no files are left."""

from __future__ import annotations

import pickle
import signal
from typing import TYPE_CHECKING

import pytest

from keyscale.state.objects.local_store import LocalObjectStore
from tests.crash.lost_child import lost_child
from tests.support.state.state_job import ALWAYS, StateJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.real  # dozens of processes that are killed

BUILD_STEPS = [
    "consolidate.started",
    "consolidate.linked",
    "consolidate.clipped",
    "consolidate.part_copied",
    "consolidate.copied",
    "consolidate.compacted",
    "consolidate.built",
    "consolidate.caught_up",
    "consolidate.closed",
    "consolidate.ready",
]
TAKE_OVER_STEPS = ["take_over.moved", "take_over.replayed", "take_over.unmarked", "take_over.removed"]
BUILD_STEPS_STOPPED = ["consolidate.linked", "consolidate.caught_up", "consolidate.ready"]
TAKE_OVER_STEPS_STOPPED = ["take_over.moved", "take_over.unmarked"]
KINDS = ["merge", "trim"]
TRIM_STEPS = {"consolidate.clipped", "consolidate.ready", "take_over.moved"}


def lost_at(steps: Sequence[str], stopped: Sequence[str]) -> pytest.MarkDecorator:
    """Every step with a kill, for both kinds; some with a stopped process that continues later, which is slower.

    A trim goes through the steps of a merge: the exhaustive tier takes it through those in which it is not special.
    """
    killed_cases = [
        pytest.param(
            kind,
            step,
            signal.SIGKILL,
            id=f"{kind}-{step}-killed",
            marks=() if kind == "merge" or step in TRIM_STEPS else pytest.mark.exhaustive,
        )
        for kind in KINDS
        for step in steps
        if (kind, step) != ("trim", "consolidate.part_copied")  # a trim copies nothing
    ]
    stopped_cases = [
        pytest.param(
            "merge",
            step,
            signal.SIGSTOP,
            id=f"merge-{step}-stopped",
            marks=() if step == stopped[0] else pytest.mark.exhaustive,
        )
        for step in stopped
    ]
    return pytest.mark.parametrize(("job", "step", "sent"), [*killed_cases, *stopped_cases], indirect=["job"])


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateJob]:
    """One subtask with two shards, or two with one shard each that is clipped: before its first checkpoint."""
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", policy=ALWAYS)
    before, after = (2, 1) if request.param == "merge" else (1, 2)
    job.start(before)
    job.run_batch(dict.fromkeys(range(100), 1))
    manifest, _ = job.checkpoint()
    job.start(after, manifest.path)
    job.run_batch({5: 5})
    yield job
    check_no_orphans(job)


@lost_at(BUILD_STEPS, BUILD_STEPS_STOPPED)
def test_a_consolidator_lost_at_any_step_does_no_harm(
    job: StateJob, tmp_path: Path, step: str, sent: signal.Signals
) -> None:
    job.checkpoint()
    job.run_batch({1: 1, 2: 1})
    job.run_batch({1: 10, 2: 10})
    with lost_child("tests.crash.consolidation_child", ["consolidate", job.consolidation], tmp_path, step, sent):
        job.run_batch({3: 3})
        assert job.dump() == job.reference
        job.checkpoint()
        job.run_batch({4: 4})
        assert job.dump() == job.reference
    assert job.dump() == job.reference


@lost_at(TAKE_OVER_STEPS, TAKE_OVER_STEPS_STOPPED)
def test_a_task_lost_at_any_step_of_a_take_over_does_no_harm(
    job: StateJob, tmp_path: Path, step: str, sent: signal.Signals
) -> None:
    job.checkpoint()
    job.run_batch({1: 1, 2: 1})
    assert job.consolidate()
    with lost_child("tests.crash.consolidation_child", ["open", opening(job, tmp_path)], tmp_path, step, sent):
        job.run_batch({3: 3})
        assert job.dump() == job.reference
        job.checkpoint()
    job.run_batch({4: 4})
    assert job.dump() == job.reference


@lost_at(["consolidate.begun"], [])
def test_a_snapshot_lost_when_a_consolidation_has_begun_does_no_harm(
    job: StateJob, tmp_path: Path, step: str, sent: signal.Signals
) -> None:
    arguments = ["snapshot", opening(job, tmp_path)]
    with lost_child("tests.crash.consolidation_child", arguments, tmp_path, step, sent):
        job.run_batch({3: 3})
        assert job.dump() == job.reference
    job.run_batch({4: 4})
    assert job.dump() == job.reference


def opening(job: StateJob, directory: Path) -> Path:
    """Returns what the child needs to open the subtask that is consolidated, or subtask 0."""
    index = next((spec.index for spec in map(job.spec, range(job.parallelism)) if is_of(job, spec.index)), 0)
    file = directory / "opening"
    file.write_bytes(pickle.dumps((job.spec(index), job.version(index), job.plans[index], job.local_root, job.store)))
    return file


def is_of(job: StateJob, index: int) -> bool:
    return job.consolidation is not None and job.consolidation.is_relative_to(
        job.spec(index).local_directory(job.local_root)
    )


def check_no_orphans(job: StateJob) -> None:
    """Checks that every subtask has one shard without foreign keys, and that there are no other local files."""
    for _ in range(4):
        job.checkpoint()
        if job.consolidation is None:
            break
        job.consolidate()
        job.run_batch({6: 6})
    assert job.consolidation is None
    assert job.shards() == [1] * job.parallelism
    assert job.dump() == job.reference
    for index in range(job.parallelism):
        root = job.spec(index).local_directory(job.local_root)
        assert {path.name for path in (root / "consolidation").iterdir()} <= {"given-up"}
        [attempt_try] = root.glob("try-*")
        assert len(list(attempt_try.glob("data-*"))) == 1
        assert {path.name for path in attempt_try.iterdir() if not path.name.startswith("data-")} <= {
            "lock",
            "CLEAN",
            "index.json",
            "bell",
        }
