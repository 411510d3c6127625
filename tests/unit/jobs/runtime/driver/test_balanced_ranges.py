"""Rescales of skewed state that divide key groups by size: the output is exact, and the log has the ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt
from keyscale.jobs.functions.process_function import KeyedProcessFunction
from keyscale.state.documents.log_entries import AttemptOpened
from keyscale.state.documents.manifest import Manifest, read_manifest
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import assign_to_key_group
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.range_choice import key_group_weights
from keyscale.vocabulary import KeyGroupDivision
from tests.support.rehearsal.keyed_rehearsal import SINK, keyed_rehearsal
from tests.support.rehearsal.rehearsal import JOB, MAX_PARALLELISM, Rehearsal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTPUT = pa.schema([("key", pa.string()), ("count", pa.int64())])
FULL_GROUPS = 3
"""The state is in the first key groups."""
BATCHES = 10


class Counts(KeyedProcessFunction):
    """Counts the records of each key."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record: Any, context: Any) -> Iterator[tuple[str, int]]:  # noqa: ARG002 - of the base
        self.count.update((self.count.value() or 0) + 1)
        yield record.key, self.count.value()


def skewed_batches() -> list[list[tuple[str, int]]]:
    groups = {key: assign_to_key_group(key, MAX_PARALLELISM) for key in map(str, range(120))}
    keys = [key for key, group in groups.items() if group < FULL_GROUPS or int(key) < 10]
    return [[(key, batch) for key in keys] for batch in range(BATCHES)]


@pytest.fixture
def job(tmp_path: Path) -> Rehearsal:
    job = keyed_rehearsal(tmp_path / "job", Counts(), OUTPUT, skewed_batches())
    job.division = KeyGroupDivision.BY_SIZE
    return job


def require_exact_output(job: Rehearsal) -> None:
    job.drain()
    rows = sorted((row["key"], row["count"]) for row in job.output(SINK))
    keys = [key for key, _ in skewed_batches()[0]]
    assert rows == sorted((key, count) for key in keys for count in range(1, BATCHES + 1))


def newest_manifest(job: Rehearsal) -> Manifest:
    path = job.checkpoint().partition("store/")[2]
    return read_manifest(LocalObjectStore(job.directory / "store"), path)


def openings(job: Rehearsal) -> list[AttemptOpened]:
    entries = CommitLog(LocalObjectStore(job.directory / "store"), Layout(JOB)).read()
    return [entry for _, entry in entries if isinstance(entry, AttemptOpened)]


def test_live_rescales_divide_skewed_state_by_size(job: Rehearsal) -> None:
    job.start(2)
    job.run_batches(2)
    weights = key_group_weights(newest_manifest(job), MAX_PARALLELISM)
    job.rescale(4, meanwhile=1)
    by_size, by_count = job.ranges, KeyGroupRanges.of_count(MAX_PARALLELISM, 4)
    assert by_size == KeyGroupRanges.balanced(weights, 4)
    assert by_size.largest(weights) < 0.6 * by_count.largest(weights)
    job.run_batches(1)
    assert newest_manifest(job).key_group_ranges == by_size
    assert [each.key_group_ranges for each in openings(job)][-1] == by_size
    job.rescale(3, meanwhile=1)
    assert len(job.ranges) == 3
    assert not job.ranges.is_by_count
    require_exact_output(job)


def test_a_restart_keeps_the_ranges_and_another_parallelism_divides_anew(job: Rehearsal) -> None:
    job.start(2)
    job.run_batches(2)
    job.checkpoint()
    job.start(4)
    by_size = job.ranges
    assert not by_size.is_by_count
    job.run_batches(1)
    job.division = KeyGroupDivision.BY_COUNT
    for host in ("second", "third"):  # with the opening in the log, then with the manifest alone
        job.start(4, local=host)
        assert job.ranges == by_size
        job.run_batches(1)
        job.checkpoint()
    job.start(3)
    assert job.ranges == KeyGroupRanges.of_count(MAX_PARALLELISM, 3)
    assert openings(job)[-1].attempt == Attempt(job.attempt)
    require_exact_output(job)


def test_by_count_divides_skewed_state_by_count(job: Rehearsal) -> None:
    job.division = KeyGroupDivision.BY_COUNT
    job.start(2)
    job.run_batches(2)
    job.checkpoint()
    job.rescale(4)
    assert job.ranges.is_by_count
    require_exact_output(job)


def test_rescales_to_and_fro_are_exact_while_the_division_changes(job: Rehearsal) -> None:
    job.start(2)
    found = []
    for parallelism, division in ((4, "BY_SIZE"), (1, "BY_COUNT"), (3, "BY_SIZE"), (2, "BY_COUNT"), (4, "BY_SIZE")):
        job.run_batches(1)
        job.checkpoint()
        job.division = KeyGroupDivision(division)
        if parallelism == 2:
            job.start(parallelism, local="another host")
        else:
            job.rescale(parallelism, meanwhile=1)
        found.append(job.ranges.is_by_count)
    assert found == [False, True, False, True, False]
    require_exact_output(job)
