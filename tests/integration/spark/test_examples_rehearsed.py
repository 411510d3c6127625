"""Every example job has the result of a batch computation, at any parallelism, through kills and a rescale.

Everything but the Spark cluster is real here: functions, RocksDB, the commit log, checkpoints, savepoints, sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import keyscale.jobs.runtime.driver.batch_loop
from tests.support.examples.example_cases import ExampleCase, access_log_case, bills_case, nexmark_case
from tests.support.rehearsal.rehearsal import Rehearsal
from tests.support.rehearsal.spark_transforms import SparkTransforms
from tests.support.short_form import short_form
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keyscale.jobs.graph.topology import Topology

pytestmark = pytest.mark.real

OTHER = {1: 3, 2: 1, 3: 2}
CRASHES = ("batch.planned", "batch.ran", "batch.committed")


class KilledError(Exception):
    """In place of the end of a process in the middle of a batch."""


@pytest.fixture(scope="module", params=short_form(["nexmark", "access_log", "bills"], ["access_log"]))
def case(request: pytest.FixtureRequest) -> ExampleCase:
    if request.param == "nexmark":
        return nexmark_case(7, files=7, events=120)
    if request.param == "access_log":
        return access_log_case(7, files=7, requests=80)
    return bills_case(7, files=7, records=50)


@pytest.fixture(scope="module")
def transforms(spark: SparkSession) -> SparkTransforms:
    return SparkTransforms(spark)


@pytest.fixture(scope="module")
def topology(case: ExampleCase, spark: SparkSession) -> Topology:
    return case.topology(spark)


@pytest.fixture
def job(case: ExampleCase, topology: Topology, transforms: SparkTransforms, tmp_path: Path) -> Rehearsal:
    tables = [pa.Table.from_pylist(file, case.schema) for file in case.files]
    return Rehearsal(tmp_path, topology, tables, transforms)


@pytest.mark.parametrize("parallelism", short_form([1, 2, 3], [2]))
def test_an_example_killed_and_rescaled_gives_what_a_batch_computation_gives(
    case: ExampleCase, job: Rehearsal, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    assert all(case.expected.values()), "a result of which nothing is expected proves nothing"
    job.start(parallelism)
    job.run_batches(2)
    job.checkpoint()
    job.run_batches(1)

    job.start(parallelism)  # killed between two batches
    for moment in CRASHES:
        with monkeypatch.context() as patch:
            patch.setattr(keyscale.jobs.runtime.driver.batch_loop, "failpoint", killed_at(moment))
            with pytest.raises(KilledError):
                job.run_batches(1)
        job.start(parallelism, local=f"host-{moment}")  # with all local files lost
    job.run_batches(1)

    job.start(OTHER[parallelism], job.checkpoint("moving"))
    job.run_batches(1)
    job.start(parallelism, job.checkpoint("back"))
    job.drain()

    wait_until(lambda: not differences(case, job), what="windows that the clock ends", poll=0.1, timeout=120)
    assert differences(case, job) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_an_example_rescaled_by_its_running_driver_gives_what_a_batch_computation_gives(
    case: ExampleCase, job: Rehearsal, parallelism: int
) -> None:
    job.start(parallelism)
    job.run_batches(2)
    job.rescale(OTHER[parallelism], meanwhile=1)
    job.run_batches(1)
    job.checkpoint()
    job.rescale(parallelism)
    job.run_batches(1)
    job.start(OTHER[parallelism], local="another host")
    job.drain()
    wait_until(lambda: not differences(case, job), what="windows that the clock ends", poll=0.1, timeout=120)
    assert differences(case, job) == {}


def differences(case: ExampleCase, job: Rehearsal) -> dict[str, Any]:
    job.fire_timers()
    return case.differences(lambda name: job.output(f"{name}-files"))


def killed_at(moment: str) -> Any:
    """A `failpoint` that does not return from a moment."""

    def failpoint(name: str) -> None:
        if name == moment:
            raise KilledError(moment)

    return failpoint
