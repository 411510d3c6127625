"""What a checkpoint is based on, counts and subsumes, with stand-ins for the tasks that store it."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.identifiers import CheckpointId, JobId
from keyscale.jobs.runtime.driver import checkpoints as module
from keyscale.jobs.runtime.driver.checkpoints import Checkpoints
from keyscale.state.layout import Layout
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYOUT = Layout(JobId("job"))


class Loop:
    """A loop of batches that knows whether it is paused."""

    def __init__(self) -> None:
        self.is_paused = False
        self.rebased: list[int] = []

    @contextmanager
    def paused(self, _: float) -> Iterator[Any]:
        self.is_paused = True
        try:
            yield SimpleNamespace(time=None)
        finally:
            self.is_paused = False

    def rebase(self, manifest: Any) -> None:
        self.rebased.append(manifest.number)


class Job:
    """The checkpoints of a job; each upload is noted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.reports, self.uploads = Loop(), list[Any](), list[Any]()
        self.records = 0
        self.fails = False
        store = LocalObjectStore(path)
        info, places = SimpleNamespace(job_id=JobId("job")), SimpleNamespace(specs={})
        context = SimpleNamespace(timeout_ms=1000, store=store, layout=LAYOUT, info=info, places=places)
        self.checkpoints = Checkpoints(
            context=cast("Any", context),
            loop=cast("Any", self.loop),
            report=self.reports.append,
            next_id=CheckpointId(1),
            retained_ids=[],
            retained_count=2,
            base=None,
            input_records=lambda: self.records,
        )
        monkeypatch.setattr(module, "_Taking", lambda *given: Taking(self, *given[1:3]))
        monkeypatch.setattr(module, "snapshot_clocks", lambda *_: "clocks")

        def known_files(bases: list[Any], job_id: str, *, claimed: bool) -> tuple[object, ...]:
            assert job_id == "job"
            return (*(base.number for base in bases), "claimed" if claimed else "own")

        monkeypatch.setattr(module, "known_files", known_files)


class Taking:
    """A checkpoint whose tasks do nothing."""

    def __init__(self, job: Job, checkpoint_id: CheckpointId, savepoint_id: str | None) -> None:
        self.job, self.checkpoint_id, self.savepoint_id = job, checkpoint_id, savepoint_id

    def in_progress(self) -> str:
        return f"{self.checkpoint_id} in progress"

    def failed(self, failure: Exception) -> str:
        return f"{self.checkpoint_id} failed: {failure}"

    def cancelled_at(self, _: float) -> Any:
        return nullcontext()

    def link(self, _: Any) -> str:
        assert self.job.loop.is_paused
        return "linked"

    def upload(self, linked: str, known: object, copies: object, clocks: object) -> str:
        assert linked == "linked"
        if self.job.fails:
            raise StoreUnavailableError("away")
        self.job.uploads.append((known, copies, clocks, self.job.loop.is_paused))
        return "stored"

    def publish(self, _: Any, stored: str) -> Any:
        assert stored == "stored"
        return SimpleNamespace(number=self.checkpoint_id, path=LAYOUT.manifest(self.checkpoint_id))

    def completed(self, _manifest: Any, _stored: Any, records: int) -> Any:
        return SimpleNamespace(
            model_copy=lambda update: (f"{self.checkpoint_id} completed", records, update["subsumed_checkpoint_ids"])
        )


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_each_checkpoint_is_based_on_the_one_before_and_counts_the_records_since(job: Job) -> None:
    for job.records in (30, 50, 50):
        job.checkpoints.take()
    assert job.uploads == [
        (("own",), ("claimed",), "clocks", False),
        ((1, "own"), (1, "claimed"), "clocks", False),
        ((2, "own"), (2, "claimed"), "clocks", False),
    ]
    assert job.loop.rebased == [1, 2, 3]
    assert job.reports[1::2] == [("1 completed", 30, []), ("2 completed", 20, []), ("3 completed", 0, [1])]
    assert job.checkpoints.retained_ids == [2, 3]


def test_after_a_failure_the_next_checkpoint_copies_no_file_that_may_be_gone(job: Job) -> None:
    job.checkpoints.take()
    job.fails = True
    with pytest.raises(StoreUnavailableError):
        job.checkpoints.take()
    assert not job.loop.is_paused
    job.fails = False
    job.checkpoints.take()
    assert job.uploads[1] == ((1, "own"), {}, "clocks", False)
    assert job.reports[2:5] == ["2 in progress", "2 failed: away", "3 in progress"]
    assert (job.loop.rebased, job.checkpoints.retained_ids) == ([1, 3], [1, 3])


def test_a_savepoint_is_no_base_and_subsumes_no_checkpoint(job: Job) -> None:
    job.checkpoints.take()
    completed: list[int] = []

    def then(snapshot: Any) -> None:
        assert job.loop.is_paused, "batches wait until the savepoint has been acted upon"
        completed.append(snapshot.manifest.number)

    job.checkpoints.take("first", then=then)
    job.checkpoints.take("second")
    assert completed == [2]
    assert job.uploads[1:] == [
        ((1, "own"), (1, "claimed"), {}, True),
        ((1, "own"), (1, "claimed"), "clocks", False),
    ]
    assert (job.loop.rebased, job.checkpoints.retained_ids) == ([1], [1])
    assert job.checkpoints.base is not None
    assert cast("Any", job.checkpoints.base).number == 1


def test_the_files_of_a_claimed_savepoint_are_the_jobs_own(job: Job) -> None:
    job.checkpoints.claims = True
    job.checkpoints.take()
    assert job.uploads[0][:2] == (("claimed",), ("claimed",))


def test_the_number_of_a_manifest_that_is_there_is_left_out(job: Job) -> None:
    for number in (1, 2):
        job.checkpoints.context.store.put(LAYOUT.manifest(CheckpointId(number)), b"{}")
    assert cast("Any", job.checkpoints.take().manifest).number == 3
    assert job.checkpoints.next_id == 4
