"""The checks at the end of a soak turn red when they should."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from keyscale.state.documents.log_entries import BatchCommitted
from keyscale.state.log.commit_log import LogGapError
from keyscale.state.objects.errors import ObjectNotFoundError, StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.opening import open_store
from tests.soak.soak_figures import grown
from tests.soak.soak_objects import JobObjects
from tests.soak.soak_shop import folded
from tests.soak.soak_truth import COUNTED, COUNTERS, Observation, Truth, judge
from tests.support.servers.faulty_s3_server import Fault, FaultyS3Server
from tests.support.short_form import short_form
from tests.support.state.state_job import JOB, StateJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    """A job with two checkpoints, a savepoint, and batches before, between and after them."""
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    for savepoint_id in (None, None, "end"):
        job.run_batch(dict.fromkeys(range(20), 1))
        job.checkpoint(savepoint_id)
    job.run_batch({1: 1})
    return job


def objects_of(job: StateJob, tmp_path: Path) -> JobObjects:
    shutil.copytree(tmp_path / "store" / JOB / "log", tmp_path / "history" / JOB / "log")
    return JobObjects(job.store.url, JOB, tmp_path / "history")


def test_a_whole_job_passes(job: StateJob, tmp_path: Path) -> None:
    objects = objects_of(job, tmp_path)
    assert objects.check_history() == 4
    objects.check_snapshots()
    objects.collect()
    objects.check_snapshots()
    assert objects.savepoint() == f"{job.store.url}/{job.layout.savepoints}end/manifest.json"


def test_a_batch_that_is_committed_twice_is_noticed(job: StateJob, tmp_path: Path) -> None:
    job.position = job.log.append(job.position, BatchCommitted(job.attempt, job.batch_id, {}, {}, 0))
    with pytest.raises(AssertionError, match="committed twice"):
        objects_of(job, tmp_path).check_history()


def test_an_entry_that_is_missing_in_the_log_is_noticed(job: StateJob, tmp_path: Path) -> None:
    objects = objects_of(job, tmp_path)
    (tmp_path / "history" / job.layout.log_entry(3)).unlink()
    with pytest.raises(LogGapError):
        objects.check_history()


@pytest.mark.parametrize("place", ["savepoints/end/", "shared/"])
def test_a_file_of_a_snapshot_that_is_missing_or_damaged_is_noticed(job: StateJob, tmp_path: Path, place: str) -> None:
    objects = objects_of(job, tmp_path)
    infos = [each for each in job.store.list(job.layout.job + place) if not each.path.endswith("manifest.json")]
    path = next(each.path for each in infos if each.size_bytes)
    data = job.store.get(path)
    job.store.put(path, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(AssertionError, match=path):
        objects.check_snapshots()
    job.store.delete([path])
    with pytest.raises(ObjectNotFoundError):
        objects.check_snapshots()


def test_a_changelog_that_a_recovery_needs_and_that_is_missing_is_noticed(job: StateJob, tmp_path: Path) -> None:
    objects = objects_of(job, tmp_path)
    job.store.delete([max(info.path for info in job.store.list(job.layout.changelogs))])
    with pytest.raises(ObjectNotFoundError):
        objects.check_snapshots()


def test_what_nothing_names_is_collected_and_what_cannot_be_is_noticed(job: StateJob, tmp_path: Path) -> None:
    objects = objects_of(job, tmp_path)
    objects.collect()
    job.store.put(f"{job.layout.shared}orphan", b"")
    assert objects.collect() == 1
    unnamed = job.layout.changelog(job.spec(0).operator_uid, batch_id=99, subtask=0, attempt=99, unique="x")  # type: ignore[arg-type]
    job.store.put(unnamed, b"")  # as if the open attempt might still commit it
    with pytest.raises(AssertionError, match=unnamed):
        objects.collect()


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3Server]:
    server = FaultyS3Server(7, tmp_path / "history")
    for name, value in server.server.variables.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


@pytest.mark.parametrize("fault", short_form(Fault, [Fault.LOST_ANSWERS, Fault.CUT_ANSWERS, Fault.REPEATED_REQUESTS]))
def test_the_history_has_each_entry_once_whatever_becomes_of_the_answers(
    s3: FaultyS3Server, tmp_path: Path, fault: Fault
) -> None:
    url = f"s3://{s3.server.new_bucket()}/jobs"
    job = StateJob(open_store(url), tmp_path / "local")
    job.start(1)
    s3.fault = fault
    while s3.hits < 5:
        job.run_batch({1: 1})
    s3.fault = None
    job.checkpoint()
    objects = JobObjects(url, JOB, tmp_path / "history")
    assert objects.check_history() == job.reference[1]
    objects.check_snapshots()
    assert s3.rewritten == []
    assert job.dump() == job.reference


def test_a_server_that_is_away_answers_on_no_connection(s3: FaultyS3Server) -> None:
    store = open_store(f"s3://{s3.server.new_bucket()}/jobs")
    store.put("here", b"")
    s3.stop()
    with pytest.raises(StoreUnavailableError):
        store.put("gone", b"")
    s3.start()
    assert [info.path for info in store.list("")] == ["here"]


def test_an_entry_that_is_written_again_is_noticed(s3: FaultyS3Server) -> None:
    store = open_store(f"s3://{s3.server.new_bucket()}/jobs")
    store.put("job/log/00000000000000000001.json", b"1")
    store.put("job/log/00000000000000000001.json", b"2")
    assert s3.rewritten == ["job/log/00000000000000000001.json"]


def test_what_grows_over_the_samples_is_named() -> None:
    flat = {"driver MiB": 200, "state files": 100}
    assert grown([flat] * 9) == []
    swaying = [{**flat, "driver MiB": 200 + 100 * (number % 2)} for number in range(9)]
    assert grown(swaying) == []
    growing = [{"driver MiB": 200 + 50 * number, "state files": 100 + 100 * number} for number in range(9)]
    assert grown(growing) == ["driver MiB: 250 at first, 550 at last", "state files: 200 at first, 800 at last"]


def steady_truth() -> Truth:
    """A job that has committed ten records a second for ten minutes, up to five seconds ago."""
    truth = Truth()
    for second in range(600):
        at_ms, reached = 1000 * second, max(0, 10 * (second - 5))
        truth.ends.add(at_ms, 10 * second)
        truth.reached.add(at_ms, reached)
        for name in COUNTED:
            truth.counted[name].add(at_ms, reached)
            truth.visible[name].add(at_ms, reached)
    return truth


def observed(**changed: float | None) -> Observation:
    """What a right control plane says of the steady job at 400 seconds, with some other numbers."""
    figures = {**dict.fromkeys(COUNTERS, 3_940), "lag_records": 50, "lag_records_at_ms": 399_000, "input_rate": 10.0}
    return Observation(400_000, 400_100, True, {**figures, **changed})


def test_right_numbers_of_a_job_pass() -> None:
    assert judge(observed(), steady_truth()) == []
    assert judge(observed(input_rate=None, lag_records=None, lag_records_at_ms=None), steady_truth()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in COUNTERS for value in (3_700, 3_970)),
        ("lag_records", 900),
        ("lag_records_at_ms", 300_000),
        ("input_rate", 40.0),
        ("input_rate", 1.0),
    ],
)
def test_a_wrong_number_of_the_api_is_named(name: str, value: float) -> None:
    wrong = judge(observed(**{name: value}), steady_truth())
    assert wrong
    assert all(name.removesuffix("_at_ms") in each for each in wrong)


@pytest.mark.parametrize(("at_ms", "is_right"), [(300_000, True), (69_000, False)])
def test_in_a_fault_the_number_of_waiting_records_may_be_the_brokers_last_answer(at_ms: int, is_right: bool) -> None:
    figures = observed(lag_records=50, lag_records_at_ms=at_ms).figures
    assert (judge(Observation(400_000, 400_100, False, figures), steady_truth()) == []) is is_right


@pytest.mark.parametrize(("name", "value"), [*((name, 4_200) for name in COUNTED), ("lag_records", 2_000)])
def test_a_wrong_number_that_prometheus_gets_is_named(name: str, value: float) -> None:
    truth, figures = steady_truth(), observed().figures
    right = {**dict.fromkeys(COUNTED, 3_940), "lag_records": 50}
    assert judge(Observation(400_000, 400_100, True, figures, scraped=right), truth) == []
    wrong = judge(Observation(400_000, 400_100, True, figures, scraped={**right, name: value}), truth)
    assert [each.partition(" is ")[0] for each in wrong] == [f"Prometheus: {name}"]


@pytest.mark.parametrize(("name", "value"), [("input_records", 4_200), ("lag_records", 2_000)])
def test_a_wrong_number_of_the_series_and_of_the_page_is_named(name: str, value: int) -> None:
    seen = observed()
    point = (390_000, 10_000, {name: value})
    of_series = judge(Observation(400_000, 400_100, True, seen.figures, (point,)), steady_truth())
    of_page = judge(Observation(400_000, 400_100, True, seen.figures, (), {name: value}), steady_truth())
    assert [each.partition(":")[0] for each in of_series + of_page] == ["series at 390000", "page"]


def test_rows_that_a_counter_does_not_have_yet_are_named() -> None:
    truth = steady_truth()
    truth.visible["late_records"].add(600_000, 6_000)
    late = Observation(
        620_000,
        620_100,
        True,
        {**dict.fromkeys(COUNTERS, 5_940), "lag_records": None, "lag_records_at_ms": None, "input_rate": None},
    )
    assert [each.partition(" is ")[0] for each in judge(late, truth)] == ["API: late_records"]


def test_the_fold_adds_the_orders_of_a_shop_by_window() -> None:
    orders = [{"shop": "a", "at": at, "cents": 5} for at in (0, 9_999, 10_000)]
    assert folded([*orders, {"shop": "b", "at": 0, "cents": 1}]) == {
        ("a", 0): (2, 10),
        ("a", 10_000): (1, 5),
        ("b", 0): (1, 1),
    }
