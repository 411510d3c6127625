"""Store, local directory and sinks are tried before an attempt begins; nothing of it stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.identifiers import JobId
from keyscale.jobs.errors import SinkForbiddenError, SinkUnavailableError
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.runtime.driver import target_check
from keyscale.jobs.runtime.driver.target_check import TargetCheck
from keyscale.jobs.runtime.retries import Retries
from keyscale.jobs.streams.streams import DataStream
from keyscale.state.errors import DiskForbiddenError
from keyscale.state.layout import Layout
from keyscale.state.objects.errors import StoreForbiddenError, StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.drivers.assignments import assignment as new_assignment

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.jobs.sinks.sink import SinkContext

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64())])


class Target:
    """A sink that can be checked: each check ends by the next of some errors."""

    def __init__(self, *errors: Exception) -> None:
        self.checked: list[tuple[pa.Schema, SinkContext]] = []
        self._errors = list(errors)

    def check(self, schema: pa.Schema, context: SinkContext) -> None:
        self.checked.append((schema, context))
        if self._errors:
            raise self._errors.pop(0)


def check_of(tmp_path: Path, *sinks: Any) -> TargetCheck:
    builder = TopologyBuilder()
    stream = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    for number, sink in enumerate(sinks):
        stream.sink_to(sink).uid(f"out-{number}")
    assignment = new_assignment(
        job_id="job",
        job_name="flights",
        attempt=3,
        parallelism=2,
        max_parallelism=8,
        artifact_filename="job.py",
        artifact_sha256="0",
        store_url=(tmp_path / "store").as_uri(),
    )
    retries = Retries(1000, sleep=lambda _: None)
    return TargetCheck(
        builder.build(),
        assignment,
        LocalObjectStore(tmp_path / "store"),
        tmp_path / "local",
        retries,
        replace(retries, awaited=SinkUnavailableError),
    )


def test_each_sink_is_checked_with_its_schema_and_the_store_has_nothing_afterwards(tmp_path: Path) -> None:
    first, second = Target(), Target()
    check_of(tmp_path, first, object(), second).run()
    [(schema, context)], [(_, other)] = first.checked, second.checked
    assert (schema, context.job_id, context.uid, context.attempt) == (SCHEMA, "job", "out-0", 3)
    assert (other.uid, other.unique == context.unique) == ("out-2", False)
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_a_missing_right_is_of_its_sink_and_is_not_tried_again(tmp_path: Path) -> None:
    target = Target(SinkForbiddenError("user a may not write to /out"))
    with pytest.raises(SinkForbiddenError) as caught:
        check_of(tmp_path, object(), target).run()
    assert origin_of(caught.value).operator_uid == "out-1"
    assert len(target.checked) == 1


def test_a_sink_or_a_store_that_does_not_answer_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(SinkUnavailableError("away"), SinkUnavailableError("away"))
    answers: list[Exception | None] = [StoreUnavailableError("away"), None]

    def probe(_: Any, path: str) -> None:
        assert path == Layout(JobId("job")).job, "the job's credentials may reach no other objects"
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(target_check, "probe", probe)
    check_of(tmp_path, target).run()
    assert (len(target.checked), answers) == (3, [])


def test_a_store_without_a_right_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(*_: Any) -> None:
        raise StoreForbiddenError("user a may not use probe/x")

    monkeypatch.setattr(target_check, "probe", probe)
    with pytest.raises(StoreForbiddenError, match=f"^{(tmp_path / 'store').as_uri()}: user a may not use"):
        check_of(tmp_path, object()).run()


def test_a_local_directory_without_a_right_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_check, "missing_right", lambda path: f"user a may not write to {path}")
    with pytest.raises(DiskForbiddenError, match=f"local state: user a may not write to {tmp_path / 'local'}"):
        check_of(tmp_path, object()).run()
