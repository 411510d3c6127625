"""A process is killed at every named step: the next start is right, and no files are left."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.state.documents.log_entries import BatchCommitted
from keyscale.state.documents.manifest import read_manifest
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore
from tests.crash.lost_child import lost_child
from tests.crash.state_child import BATCH, collect, resumed
from tests.support.state.state_job import JOB, StateJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real  # dozens of processes that are killed

STEPS = [
    ("restore", "log.appending"),
    ("restore", "log.appended"),
    ("restore", "open.marker_taken"),
    ("restore", "restore.file_downloaded"),
    ("restore", "restore.files_fetched"),
    ("restore", "restore.changelog_read@2"),
    ("restore", "restore.replayed"),
    ("restore", "close.flushed"),
    ("batch", "batch.changelog_written"),
    ("batch", "batch.changelog_written@3"),
    ("batch", "log.appending@3"),
    ("batch", "log.appended@3"),
    ("checkpoint", "snapshot.shard_linked"),
    ("checkpoint", "snapshot.file_uploaded@4"),
    ("checkpoint", "manifest.publishing"),
    ("checkpoint", "manifest.published"),
    ("savepoint", "snapshot.file_uploaded@4"),
    ("savepoint", "manifest.publishing"),
    ("collect", "retention.manifests_deleted"),
    ("collect", "retention.files_deleted"),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, int]]:
    """A job at parallelism 2 with a checkpoint and committed batches after it, and its expected state."""
    directory = tmp_path_factory.mktemp("prepared")
    job = StateJob(LocalObjectStore(directory / "store"), directory / "local")
    job.start(2)
    job.run_batch(dict.fromkeys(range(100), 1))
    job.checkpoint()
    job.run_batch(dict.fromkeys(range(0, 100, 3), 2))
    job.run_batch(dict.fromkeys(range(0, 100, 7), 3))
    return directory, job.reference


@pytest.fixture
def directory(prepared: tuple[Path, dict[int, int]], tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(prepared[0] / "store", tmp_path / "store")
    yield tmp_path
    shutil.rmtree(tmp_path)


def losses() -> Iterator[Any]:
    """A kill at every step, and a process that is stopped there and continues, mostly in the exhaustive tier."""
    for number, (action, step) in enumerate(STEPS):
        yield pytest.param(action, step, signal.SIGKILL, id=f"{action}-{step}-killed")
        marks = () if number % 7 == 0 else pytest.mark.exhaustive
        yield pytest.param(action, step, signal.SIGSTOP, id=f"{action}-{step}-stopped", marks=marks)


@pytest.mark.parametrize(("action", "step", "sent"), list(losses()))
def test_a_process_lost_at_any_step_does_no_harm(
    prepared: tuple[Path, dict[int, int]], directory: Path, action: str, step: str, sent: signal.Signals
) -> None:
    with lost_child(
        "tests.crash.state_child", [directory / "store", directory / "local", action], directory, step, sent
    ):
        job = resumed(directory / "store", directory / "local", parallelism=2, checkpoint_id=20)
        reference = dict(prepared[1])
        if committed(job) == 3:
            for key, increment in BATCH.items():
                reference[key] = reference.get(key, 0) + increment
        assert job.dump() == reference
        job.run_batch({5: 5})
        reference[5] += 5
        job.checkpoint()
        assert job.dump() == reference
    # A stopped process has continued in the meantime and ended; still nothing may have changed.
    assert job.dump() == reference
    check_no_orphans(job)


def committed(job: StateJob) -> int:
    """Returns the job's batches that are in its log or its newest checkpoint."""
    entries = CommitLog(job.store, job.layout).read(job.manifest.log_position if job.manifest else 0)
    base = job.manifest.batch_id if job.manifest else -1
    return max([base, *(entry.batch_id for _, entry in entries if isinstance(entry, BatchCommitted))])


def check_no_orphans(job: StateJob) -> None:
    """Checks that after a collection a manifest or the log names every object, and that a second one finds nothing."""
    job.checkpoint()
    collect(job)
    collect(job)
    paths = {info.path for info in job.store.list(job.layout.job)}
    manifests = {path for path in paths if path.endswith("manifest.json")}
    named = {file.path for path in manifests for file in read_manifest(job.store, path).files()}
    assert paths - manifests - named == {path for path in paths if path.startswith(job.layout.log)}
    assert named <= paths
    assert job.dump() == job.dump()
    assert job.job_id == JOB
