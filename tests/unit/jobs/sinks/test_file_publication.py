"""The output of a file sink is exactly the committed batches, whenever the driver is killed and wherever it goes back.

The file system is a model, and each of its effects is a moment at which the driver may be gone.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyscale import FileSink
from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.errors import (
    InvalidTopologyError,
    SinkForbiddenError,
    SinkOccupiedError,
    SinkPublishError,
    SinkUnavailableError,
)
from keyscale.jobs.sinks import files
from keyscale.jobs.sinks.sink import CheckedSink, SinkContext
from tests.support.sinks.driver import JOB, UID, Host, KilledError, SinkDriver, every_kill
from tests.support.sinks.file_system import ModelDirectory, ModelSession, TableFrame, use_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Play = Callable[[Host, Path], SinkDriver]

LAST = 2
SCHEMA = pa.schema([("id", pa.int64()), ("attempt", pa.int64())])


@pytest.fixture(params=["renames", "copies"])
def driver_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Returns a driver whose sink writes to a directory, on a disk or on an object store."""

    def make(host: Host, path: Path) -> SinkDriver:
        session = ModelSession(host, copies=request.param == "copies", is_local=False)
        use_model(monkeypatch, session, files)
        return SinkDriver(
            lambda: FileSink(str(path), "json"),
            lambda batch_id, attempt: TableFrame(
                session,
                tuple(
                    pa.Table.from_pylist([{"id": 10 * batch_id + part, "attempt": attempt}], SCHEMA)
                    for part in range(2)
                ),
            ),
        )

    return make


@pytest.fixture
def driver(driver_in: Play, tmp_path: Path) -> SinkDriver:
    return driver_in(Host(), tmp_path / "out")


def part_of(batch_id: int, part: int, attempt: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": 10 * batch_id + part, "attempt": attempt}], SCHEMA)


def rows(path: Path) -> list[tuple[int, int]]:
    """All that a reader of Hadoop files sees: each row's id, and the attempt that wrote it."""
    lines = [line for file in path.glob("batch=*/part-*.json") for line in file.read_text().splitlines()]
    return sorted((row["id"], row["attempt"]) for row in map(json.loads, lines))


def ids(path: Path) -> list[int]:
    return [number for number, _ in rows(path)]


def expected_ids(last: int) -> list[int]:
    return sorted(10 * batch_id + part for batch_id in range(last + 1) for part in range(2))


def checked(driver: SinkDriver) -> CheckedSink:
    """The sink of another process, which has not begun."""
    sink = driver.make()
    assert isinstance(sink, CheckedSink)
    return sink


def nothing_is_staged(path: Path) -> bool:
    return not any((path / "_staging").rglob("*.json"))


def test_a_driver_that_is_killed_before_any_effect_neither_loses_nor_doubles_a_batch(
    driver_in: Play, tmp_path: Path
) -> None:
    paths = (tmp_path / str(number) for number in count())

    def play(host: Host) -> Path:
        path = next(paths)
        driver_in(host, path).run(LAST)
        return path

    for number, path in every_kill(play):
        assert ids(path) == expected_ids(LAST), f"killed before effect {number}"
        assert nothing_is_staged(path), f"killed before effect {number}"
    assert number > 10


def test_a_killed_driver_that_goes_back_replaces_the_later_batches(driver_in: Play, tmp_path: Path) -> None:
    paths = (tmp_path / str(number) for number in count())

    def play(host: Host) -> tuple[Path, int]:
        path = next(paths)
        driver = driver_in(Host(), path)
        driver.run(LAST)
        driver_in(host, path)
        driver.go_back(0)
        driver.run(LAST)
        return path, driver.tokens[1].count('"attempt":1')

    for number, (path, of_first) in every_kill(play):
        assert ids(path) == expected_ids(LAST), f"killed before effect {number}"
        assert {attempt for key, attempt in rows(path) if key < 10} == {1}
        assert 1 not in {attempt for key, attempt in rows(path) if key >= 10}
        assert not of_first


def test_later_batches_are_gone_as_soon_as_the_job_has_gone_back(driver: SinkDriver, tmp_path: Path) -> None:
    driver.run(LAST)
    driver.go_back(0)
    driver.start()
    assert ids(tmp_path / "out") == expected_ids(0)


def test_a_killed_driver_that_starts_from_nothing_replaces_all_output(driver_in: Play, tmp_path: Path) -> None:
    paths = (tmp_path / str(number) for number in count())

    def play(host: Host) -> Path:
        path = next(paths)
        driver = driver_in(Host(), path)
        driver.run(LAST)
        driver_in(host, path)
        driver.go_back(-1)
        driver.run(1)
        return path

    for number, path in every_kill(play):
        assert ids(path) == expected_ids(1), f"killed before effect {number}"
        assert 1 not in {attempt for _, attempt in rows(path)}, f"killed before effect {number}"


def test_a_start_from_nothing_that_commits_no_batch_leaves_all_output(driver: SinkDriver, tmp_path: Path) -> None:
    driver.run(LAST)
    driver.go_back(-1)
    driver.start()
    assert ids(tmp_path / "out") == expected_ids(LAST)
    driver.go_back(LAST)
    driver.run(LAST + 1)
    assert ids(tmp_path / "out") == expected_ids(LAST + 1)


@pytest.mark.parametrize("kept", [-1, 0])
def test_a_sink_that_comes_back_after_the_job_went_back_without_it_loses_the_output_of_its_earlier_life(
    driver: SinkDriver, tmp_path: Path, kept: int
) -> None:
    driver.run(LAST)
    driver.run_without_the_sink(kept, last=20)
    driver.run(21)
    assert ids(tmp_path / "out") == [*expected_ids(kept), 210, 211]
    driver.run(22)
    assert ids(tmp_path / "out") == [*expected_ids(kept), 210, 211, 220, 221], "the next attempt takes nothing back"


def test_a_job_that_goes_back_takes_its_later_batches_back_although_their_markers_are_gone(
    driver: SinkDriver, tmp_path: Path
) -> None:
    driver.run_attempt(3)
    shutil.rmtree(tmp_path / "out" / "_published")
    driver.go_back(1)
    driver.start()
    assert ids(tmp_path / "out") == expected_ids(1)


@pytest.mark.parametrize("wrong", ["jsn", "", "json "])
def test_an_unknown_format_is_refused_where_it_is_declared(wrong: str) -> None:
    with pytest.raises(InvalidTopologyError, match="give one of avro, csv, json, orc, parquet, text, xml"):
        FileSink("/out", format=wrong)


@pytest.mark.parametrize("form", ["json", "Parquet", "org.library.spark.SomeFormat"])
def test_a_format_of_spark_or_of_a_library_is_taken(form: str) -> None:
    FileSink("/out", form)


def test_a_check_shows_readers_nothing_and_leaves_nothing_to_the_running_attempt_or_the_next(
    driver: SinkDriver, tmp_path: Path
) -> None:
    driver.run_attempt(0)
    sink = driver.start()
    token = sink.prepare(driver.frame(1, 1), driver.context(1))
    before = sorted(each for each in (tmp_path / "out").rglob("*") if each.is_file())
    checked(driver).check(SCHEMA, SinkContext(JOB, UID, 0, 9, "check"))
    assert sorted(each for each in (tmp_path / "out").rglob("*") if each.is_file()) == before
    sink.publish(token)
    assert ids(tmp_path / "out") == expected_ids(1)


def test_a_check_refuses_a_directory_of_another_job_before_it_writes_there(driver: SinkDriver, tmp_path: Path) -> None:
    driver.run_attempt(0)
    before = sorted((tmp_path / "out").rglob("*"))
    with pytest.raises(SinkOccupiedError):
        checked(driver).check(SCHEMA, SinkContext("another", UID, 0, 1, "check"))
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_a_check_looks_for_a_right_on_each_directory_that_the_sink_writes_to(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ModelDirectory, "require_right", lambda place: asked.append(place.path))
    checked(driver).check(SCHEMA, SinkContext(JOB, UID, 0, 1, "check"))
    out = tmp_path / "out"
    assert asked == [str(out), f"{out}/_staging/{JOB}/{UID}", f"{out}/_published/{JOB}/{UID}"]


def test_a_check_fails_where_staged_files_cannot_be_moved(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelDirectory, "move_to", lambda *_: False)
    with pytest.raises(SinkPublishError, match="could not be moved"):
        checked(driver).check(SCHEMA, SinkContext(JOB, UID, 0, 1, "check"))
    assert not [each for each in (tmp_path / "out").rglob("*") if each.is_file()]


def test_a_batch_is_not_visible_before_it_is_published(driver: SinkDriver, tmp_path: Path) -> None:
    sink = driver.start()
    token = sink.prepare(driver.frame(0, 1), driver.context(0))
    assert ids(tmp_path / "out") == []
    sink.publish(token)
    assert ids(tmp_path / "out") == expected_ids(0)


def test_a_batch_whose_move_is_made_and_reported_as_failed_is_published(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = driver.start()
    token = sink.prepare(driver.frame(0, 1), driver.context(0))
    move_to = ModelDirectory.move_to

    def unanswered(place: ModelDirectory, target: ModelDirectory) -> bool:
        move_to(place, target)
        return False

    monkeypatch.setattr(ModelDirectory, "move_to", unanswered)
    sink.publish(token)
    assert ids(tmp_path / "out") == expected_ids(0)


def test_a_marker_is_written_before_the_marker_before_it_is_deleted(
    driver: SinkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, noted = driver.run_attempt(0), list[str]()
    touch, delete = ModelDirectory.touch, ModelDirectory.delete

    def touched(place: ModelDirectory, name: str) -> None:
        noted.append(f"write {name}")
        touch(place, name)

    def deleted(place: ModelDirectory) -> None:
        noted.append(f"delete {place.path.rpartition('/')[2]}")
        delete(place)

    token = sink.prepare(driver.frame(1, 1), driver.context(1))
    monkeypatch.setattr(ModelDirectory, "touch", touched)
    monkeypatch.setattr(ModelDirectory, "delete", deleted)
    sink.publish(token)
    assert [each for each in noted if each.endswith((".0", ".1"))] == ["write 1.1", "delete 1.0"]


def test_publishing_again_changes_nothing_even_when_a_reader_has_taken_the_batch(
    driver: SinkDriver, tmp_path: Path
) -> None:
    sink = driver.run_attempt(0)
    sink.publish(driver.tokens[0])
    assert ids(tmp_path / "out") == expected_ids(0)
    (tmp_path / "out" / "batch=0").rename(tmp_path / "taken")
    sink.publish(driver.tokens[0])
    driver.start().publish(driver.tokens[0])
    assert ids(tmp_path / "out") == []


def test_a_driver_that_is_killed_goes_on_although_a_reader_has_taken_its_batch(driver_in: Play, tmp_path: Path) -> None:
    paths = (tmp_path / str(number) for number in count())

    def play(host: Host) -> list[int]:
        path = next(paths)
        driver, batch, taken = driver_in(host, path), path / "batch=0", path / "taken"
        while True:
            try:
                driver.run_attempt(0)
            except KilledError:
                if batch.exists():
                    batch.rename(taken)
                continue
            return sorted({*ids(path), *of_taken(taken)})

    for number, found in every_kill(play):
        assert found == expected_ids(0), f"killed before effect {number}"


def of_taken(path: Path) -> list[int]:
    """Returns the ids in a batch's directory that a reader has taken away."""
    return [json.loads(line)["id"] for file in path.glob("part-*.json") for line in file.read_text().splitlines()]


def test_a_discarded_batch_leaves_nothing(driver: SinkDriver, tmp_path: Path) -> None:
    sink = driver.start()
    token = sink.prepare(driver.frame(0, 1), driver.context(0))
    sink.discard(token)
    sink.discard(token)
    assert nothing_is_staged(tmp_path / "out")
    with pytest.raises(SinkPublishError, match="batch 0"):
        sink.publish(token)


def test_an_attempt_that_restarts_in_its_process_removes_the_batch_that_it_has_staged(
    driver: SinkDriver, tmp_path: Path
) -> None:
    sink = driver.run_attempt(0)
    sink.prepare(driver.frame(1, driver.attempt), driver.context(1))
    assert not nothing_is_staged(tmp_path / "out")
    sink.recover(driver.context(0))
    assert nothing_is_staged(tmp_path / "out")
    assert ids(tmp_path / "out") == expected_ids(0)


def test_an_older_attempt_changes_nothing_once_a_newer_one_has_published(driver: SinkDriver, tmp_path: Path) -> None:
    old = driver.start()
    late = old.prepare(driver.frame(0, 1), driver.context(0))
    driver.run_attempt(0)
    with pytest.raises(SinkOccupiedError, match="attempt 2"):
        driver_publishes(old, late, tmp_path)
    assert {attempt for _, attempt in rows(tmp_path / "out")} == {2}


def driver_publishes(old: Any, token: str, tmp_path: Path) -> None:
    """The late batch is still staged, as on a host that was cut off when the newer attempt recovered."""
    staged = json.loads(token)
    folder = tmp_path / "out" / "_staging" / JOB / UID / f"0-{staged['attempt']}-{staged['unique']}"
    folder.mkdir(parents=True)
    (folder / "_keyscale").write_text(token)
    old.publish(token)


def test_an_attempt_that_starts_leaves_what_a_newer_one_has_staged_and_published(
    driver: SinkDriver, tmp_path: Path
) -> None:
    driver.run_attempt(0)
    newest = FileSink(str(tmp_path / "out"), "json")
    token = newest.prepare(driver.frame(1, 9), SinkContext(JOB, UID, 1, 9, "newest"))
    driver.start()
    newest.publish(token)
    driver.start()
    assert {attempt for key, attempt in rows(tmp_path / "out") if key >= 10} == {9}


def test_the_directory_of_another_job_is_refused_before_anything_is_written(driver: SinkDriver, tmp_path: Path) -> None:
    driver.run_attempt(0)
    other = SinkContext("other", UID, 0, 1, "u")
    with pytest.raises(SinkOccupiedError, match="of job job writes to"):
        FileSink(str(tmp_path / "out"), "json").recover(other)
    assert not (tmp_path / "out" / "_published" / "other").exists()


def test_a_batch_is_published_where_it_was_staged_although_the_sink_has_another_directory_now(
    driver: SinkDriver, tmp_path: Path
) -> None:
    sink = driver.start()
    token = sink.prepare(driver.frame(0, 1), driver.context(0))
    FileSink(str(tmp_path / "elsewhere"), "json").publish(token)
    assert ids(tmp_path / "out") == expected_ids(0)
    assert ids(tmp_path / "elsewhere") == []


class TestWrittenBySubtasks:
    """Parquet that the subtasks write themselves: only gathered parts are published."""

    @pytest.fixture(autouse=True)
    def _model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_model(monkeypatch, ModelSession(Host()), files)
        monkeypatch.setattr(files, "hadoop_settings", lambda *_: {})

    def write(self, output: Any, subtask: int, number: int) -> str:
        batch = pa.RecordBatch.from_pylist([{"id": number, "attempt": 1}], SCHEMA)
        name = output.write(SubtaskIndex(subtask), iter([batch]))
        assert name is not None
        return str(name)

    def read(self, path: Path) -> list[int]:
        return sorted(
            number for file in path.glob("batch=*/*.parquet") for number in pq.read_table(file)["id"].to_pylist()
        )

    def test_parts_of_other_tries_are_left_out_and_a_late_one_finds_no_directory(self, tmp_path: Path) -> None:
        sink = FileSink(str(tmp_path / "out"))
        staging = sink.direct(SCHEMA)
        assert staging is not None
        sink.recover(SinkContext(JOB, UID, 0, 1, "u"))
        output = staging.begin(SinkContext(JOB, UID, 0, 1, "u"))
        counted = [self.write(output, subtask, subtask) for subtask in range(2)]
        self.write(output, 1, 99)  # a speculative task
        staging.gather(output.token, counted)
        with pytest.raises(SinkPublishError):
            self.write(output, 1, 98)
        assert self.read(tmp_path / "out") == []
        sink.publish(output.token)
        sink.publish(output.token)
        assert self.read(tmp_path / "out") == [0, 1]

    def test_a_sink_that_prepares_its_batches_itself_gets_all_of_them(self, tmp_path: Path) -> None:
        class Announced(FileSink):
            """Tells of each batch."""

            def prepare(self, frame: Any, context: SinkContext) -> str:
                raise NotImplementedError

        assert Announced(str(tmp_path / "out")).direct(SCHEMA) is None

    def test_a_part_that_is_missing_fails_the_batch(self, tmp_path: Path) -> None:
        staging = FileSink(str(tmp_path / "out")).direct(SCHEMA)
        assert staging is not None
        output = staging.begin(SinkContext(JOB, UID, 0, 1, "u"))
        counted = self.write(output, 0, 0)
        with pytest.raises(SinkPublishError, match="1 file of batch 0"):
            staging.gather(output.token, [counted, "part-of-another-host"])

    def test_a_batch_without_rows_has_a_file_with_the_schema(self, tmp_path: Path) -> None:
        sink = FileSink(str(tmp_path / "out"))
        staging = sink.direct(SCHEMA)
        assert staging is not None
        output = staging.begin(SinkContext(JOB, UID, 0, 1, "u"))
        staging.gather(output.token, [])
        sink.publish(output.token)
        [file] = (tmp_path / "out" / "batch=0").glob("*.parquet")
        assert pq.read_table(file).schema.names == ["id", "attempt"]
        assert (tmp_path / "out" / "batch=0" / "_SUCCESS").exists()

    def test_a_batch_that_is_discarded_while_tasks_write_takes_no_further_part(self, tmp_path: Path) -> None:
        sink = FileSink(str(tmp_path / "out"))
        staging = sink.direct(SCHEMA)
        assert staging is not None
        output = staging.begin(SinkContext(JOB, UID, 0, 1, "u"))
        self.write(output, 0, 0)
        sink.discard(output.token)
        with pytest.raises(SinkPublishError):
            self.write(output, 1, 1)
        assert not list((tmp_path / "out").rglob("*.parquet"))


class ReadingSession(ModelSession):
    """A session that notes how a batch is read."""

    @property
    def read(self) -> Any:
        def load(form: str, options: dict[str, Any], path: str, schema: Any) -> Any:
            return form, options, path, schema.names

        return SimpleNamespace(
            format=lambda form: SimpleNamespace(
                options=lambda **options: SimpleNamespace(load=lambda path, schema: load(form, options, path, schema))
            )
        )


def test_a_published_batch_is_read_from_where_it_is_and_no_other_batch_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, out = ReadingSession(Host()), tmp_path / "out"
    use_model(monkeypatch, session, files)
    sink = FileSink(str(out), "JSON", multiLine=True)
    first = SinkContext(JOB, UID, 0, 1, "a")
    token = sink.prepare(cast("Any", TableFrame(session, (part_of(0, 0, 1),))), first)
    assert sink.published(token, SCHEMA) is None, "it is only staged"
    sink.publish(token)
    found: Any = ("JSON", {"multiLine": True}, f"{out}/batch=0", ["id", "attempt"])
    assert sink.published(token, SCHEMA) == found
    elsewhere = FileSink(str(tmp_path / "other"), "JSON", multiLine=True)
    assert elsewhere.published(token, SCHEMA) == found
    assert FileSink(str(out), "csv").published(token, SCHEMA) is None, "not every value would come back"
    assert sink.published("of another kind", SCHEMA) is None
    again = sink.prepare(cast("Any", TableFrame(session, (part_of(0, 0, 2),))), replace(first, attempt=2))
    assert sink.published(again, SCHEMA) is None, "the place holds the batch of another attempt"


def test_the_output_of_another_job_in_the_place_of_a_batch_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, out = ModelSession(Host(), is_local=False), tmp_path / "out"
    use_model(monkeypatch, session, files)

    def staged(job_id: str, attempt: int = 1) -> tuple[FileSink, str]:
        of = FileSink(str(out), "json")
        frame: Any = TableFrame(session, (part_of(0, 0, attempt),))
        return of, of.prepare(frame, SinkContext(job_id, UID, 0, attempt, "u"))

    sink, token = staged("other")
    sink.publish(token)
    shutil.rmtree(out / "_published")  # as the advice says, for a job that never runs again
    sink, token = staged(JOB)
    with pytest.raises(SinkOccupiedError, match=rf"{out}/batch=0 holds the output of sink {UID} of job other$"):
        sink.publish(token)
    shutil.rmtree(out / "batch=0")
    monkeypatch.setattr(ModelDirectory, "move_to", lambda *_: False)
    with pytest.raises(SinkPublishError, match=f"batch 0 of sink {UID} could not be moved into place"):
        sink.publish(token)


def test_a_batch_that_cannot_be_staged_is_removed_and_says_why_or_that_its_files_are_away(
    driver: SinkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = driver.start()

    def failing(error: Exception) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise error

        return fail

    monkeypatch.setattr(ModelDirectory, "write_text", failing(SinkPublishError("refused")))
    with pytest.raises(SinkPublishError, match="refused"):
        sink.prepare(driver.frame(0, 1), driver.context(0))
    assert nothing_is_staged(tmp_path / "out")
    monkeypatch.setattr(ModelDirectory, "delete", failing(SinkPublishError("not deleted")))
    with pytest.raises(SinkPublishError, match="refused"):
        sink.prepare(driver.frame(1, 1), driver.context(1))
    monkeypatch.setattr(ModelDirectory, "delete", failing(SinkUnavailableError("away")))
    with pytest.raises(SinkUnavailableError, match="away"):
        sink.prepare(driver.frame(2, 1), driver.context(2))
    monkeypatch.setattr(ModelDirectory, "require_right", failing(SinkForbiddenError("no right")))
    with pytest.raises(SinkForbiddenError, match="no right"):
        sink.prepare(driver.frame(3, 1), driver.context(3))


def test_a_batch_whose_earlier_place_is_gone_is_a_warning(
    driver: SinkDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = driver.start()
    token = sink.prepare(driver.frame(0, 1), driver.context(0))
    shutil.rmtree(tmp_path / "out")
    FileSink(str(tmp_path / "new"), "json").publish(token)
    assert f"sink {UID}: batch 0 is not found where the sink wrote before" in caplog.text
    with pytest.raises(SinkPublishError, match=f"files of batch 0 of sink {UID} are missing"):
        sink.publish(token)
