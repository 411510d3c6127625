"""The process of a replay runs the batch, the program and the parameters of its request, and says how it ended."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from keyscale.jobs.errors import SourceRecordsLostError, SourceUnavailableError
from keyscale.jobs.operators.failures import TaskOrigin, with_origin
from keyscale.jobs.protocol.spark_settings import REQUIRED_SETTINGS
from keyscale.jobs.runtime.errors import BatchOrderError
from keyscale.replay import oldest_records, recorded_input, replay_process
from keyscale.replay.errors import ReplayRecordsGoneError
from keyscale.replay.replay_process import EXIT_DIFFERS, EXIT_FAILED, EXIT_SAME, ReplayRequest, main
from keyscale.replay.replayed_program import Definition
from keyscale.state.doors.objects import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUIRED = next(iter(REQUIRED_SETTINGS))
DEFINITION = Definition("of-job.py", ("a.jar",), {"in": "/job", "out": "/job"}, {"x": "1"}, revision=5)


class Sink:
    uid, input = "files", "counts"


class Replayed:
    """The parts of a replay, played; what they are given is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: dict[str, Any] = {}
        self.committed: Any = SimpleNamespace(output_records=3)
        self.differs = False
        self.records: Any = SimpleNamespace(count=lambda: 9)
        self.failure: Exception | None = None
        self.oldest: int | None = 12
        self.recorded: Any = DEFINITION
        self.stopped = 0
        before = SimpleNamespace(store="the store of the batch")
        self.batch = SimpleNamespace(batch_id=7, attempt=2, parallelism=4, before=before)
        node = SimpleNamespace(uid="counts")
        self.topology = SimpleNamespace(
            sinks=[Sink(), Sink()], operators_before=lambda name: [node] if name == "counts" else []
        )
        of_job = self._noted("batch", lambda: self.batch)
        monkeypatch.setattr(replay_process, "RecordedBatch", SimpleNamespace(of_job=of_job))
        monkeypatch.setattr(replay_process, "open_store", lambda url: f"store {url}")
        monkeypatch.setattr(replay_process, "heading", lambda batch: f"heading {batch.batch_id}")
        monkeypatch.setattr(replay_process, "Definition", self._definition())
        placed = self._noted("program", lambda: SimpleNamespace(script="/placed.py"))
        monkeypatch.setattr(replay_process, "Program", SimpleNamespace(placed=placed))
        monkeypatch.setattr(replay_process, "_session", self._noted("session", lambda: self))
        monkeypatch.setattr(replay_process, "declare", self._noted("declared", lambda: (self.topology, None)))
        key = SimpleNamespace(of_text=self._noted("key", lambda: "the key"))
        monkeypatch.setattr(replay_process, "ReplayedKey", key)
        operators = SimpleNamespace(
            changes={"counts": 1}, output_records={"counts": 3, "first": 5}, differences=[], key_records=6
        )
        monkeypatch.setattr(replay_process, "ReplayedOperators", self._noted("operators", lambda: operators))
        debugger = SimpleNamespace(stop_at=self._noted("stops", lambda: None), run_until_break=lambda run: run())
        monkeypatch.setattr(replay_process, "Debugger", lambda: debugger)
        monkeypatch.setattr(replay_process, "read_records", self._noted("read", self._read))
        monkeypatch.setattr(replay_process, "oldest_with_records", self._noted("oldest", lambda: self.oldest))
        monkeypatch.setattr(replay_process, "replay_graph", self._noted("graph", lambda: "the tables"))
        monkeypatch.setattr(replay_process, "compare_sinks", self._noted("compared", list))
        monkeypatch.setattr(replay_process, "Report", self._report)

    def stop(self) -> None:
        self.stopped += 1

    def _noted(self, name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.given[name] = (*arguments, *options.values())
            return answer()

        return call

    def _definition(self) -> Any:
        def of_record(*of: Any) -> Definition:
            self.given["recorded"] = of
            if isinstance(self.recorded, Exception):
                raise self.recorded
            found: Definition = self.recorded
            return found

        class Made(Definition, frozen=True):
            pass

        Made.of_record = of_record  # type: ignore[method-assign]
        return Made

    def _read(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return "the sources", self.records

    def _report(self, *parts: Any) -> Any:
        self.given["report"] = parts
        batch = SimpleNamespace(committed=self.committed)
        return SimpleNamespace(
            batch=batch,
            differs=self.differs,
            as_json=lambda: {"differs": self.differs},
            lines=lambda rows: [f"{rows} rows"],
        )

    def run(self, directory: Path, monkeypatch: pytest.MonkeyPatch, **request: Any) -> int:
        place = directory / "replay"
        place.mkdir()
        file = place / "request.json"
        usual = {"store_url": "file:///s", "job_id": "j"}
        file.write_bytes(msgspec.json.encode(msgspec.convert({**usual, **request}, ReplayRequest)))
        monkeypatch.setattr(sys, "argv", ["replay", str(file)])
        code = main()
        assert not place.exists(), "its files are removed"
        return code


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    return Replayed(monkeypatch)


def test_a_replay_runs_what_the_request_says(
    replayed: Replayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"parameters": {"out": "/mine"}, "key": "ada", "operator": "counts", "breakpoints": ("12",), "rows_max": 5}
    assert replayed.run(tmp_path, monkeypatch, batch_id=7, definition=msgspec.to_builtins(DEFINITION), **more) == 0
    given, directory = replayed.given, tmp_path / "replay"
    assert given["batch"] == ("store file:///s", "j", 7)
    assert "recorded" not in given
    file, libraries, place = given["program"]
    assert (file.name, file.is_absolute(), [str(each) for each in libraries], place) == (
        "of-job.py",
        True,
        ["a.jar"],
        directory,
    )
    assert given["session"][1:] == ({"x": "1"}, 4, directory)
    assert (given["declared"][0], given["declared"][2]) == (replayed, {"in": "/job", "out": "/mine"})
    assert given["key"] == (replayed.topology, replayed.batch, "ada", "counts")
    assert given["operators"] == (replayed.topology, "j", replayed.batch, directory, "the key")
    assert given["stops"] == (("12",), "/placed.py")
    assert given["graph"][2:] == (replayed.batch, given["graph"][3], "the sources", replayed.records)
    assert given["compared"] == (replayed.topology, replayed.batch, "the tables", False)
    parts = given["report"]
    assert (parts[1:5], parts[7:]) == (("/placed.py", 9, {"counts": 1}, 3), ("ada", 6))
    assert capsys.readouterr().out.splitlines() == ["heading 7", "program /placed.py, revision 5", "5 rows"]
    assert replayed.stopped == 1


def test_without_a_definition_the_record_beside_the_state_says_what_ran(
    replayed: Replayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed.records = None
    assert replayed.run(tmp_path, monkeypatch, program="other.py", as_json=True) == EXIT_SAME
    assert replayed.given["recorded"] == ("the store of the batch", "j", 2, tmp_path / "replay")
    assert replayed.given["program"][0].name == "other.py"
    assert replayed.given["report"][2] == 0, "a batch of time alone has read nothing"
    assert "key" not in replayed.given
    assert (replayed.given["operators"][4], replayed.given["compared"][3]) == (None, True)
    assert msgspec.json.decode(capsys.readouterr().out) == {"differs": False}


@pytest.mark.parametrize("program", [None, "other.py"])
def test_a_deleted_record_needs_a_program(
    program: str | None,
    replayed: Replayed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replayed.recorded = ObjectNotFoundError("the record")
    code = replayed.run(tmp_path, monkeypatch, program=program)
    assert code == (EXIT_FAILED if program is None else EXIT_SAME)
    if program is None:
        assert "the program of attempt 2 is not beside the state" in capsys.readouterr().err
    else:
        assert replayed.given["session"][1] == {}
        assert "program /placed.py\n" in capsys.readouterr().out, "it is of no revision"


@pytest.mark.parametrize(
    ("differs", "is_committed", "code"),
    [(True, True, EXIT_DIFFERS), (False, True, EXIT_SAME), (True, False, EXIT_SAME)],
)
def test_the_exit_code_says_whether_a_committed_batch_differs(  # noqa: PLR0917 - a table
    replayed: Replayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: bool, is_committed: bool, code: int
) -> None:
    replayed.differs = differs
    if not is_committed:
        replayed.committed = None
    assert replayed.run(tmp_path, monkeypatch) == code


@pytest.mark.parametrize(
    ("oldest", "helps"), [(12, "the oldest batch with its records is 12"), (None, "no newer batch has its records")]
)
def test_records_that_are_gone_fail_the_replay_and_the_oldest_batch_is_named(  # noqa: PLR0917 - a table
    replayed: Replayed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    oldest: int | None,
    helps: str,
) -> None:
    replayed.failure, replayed.oldest = ReplayRecordsGoneError("the records of batch 7 are gone"), oldest
    assert replayed.run(tmp_path, monkeypatch) == EXIT_FAILED
    assert replayed.given["oldest"][2:] == ("store file:///s", "j", 8)
    assert f"error REPLAY_RECORDS_GONE: the records of batch 7 are gone; {helps}" in capsys.readouterr().err
    assert replayed.stopped == 1, "Spark ends also then"


def test_the_session_has_the_jobs_settings_and_those_that_a_replay_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_to: dict[str, str] = {}

    class Builder:
        def master(self, name: str) -> Builder:
            set_to["master"] = name
            return self

        def config(self, name: str, value: str) -> Builder:
            set_to[name] = value
            return self

        def getOrCreate(self) -> str:  # noqa: N802 - Spark's name
            return "the session"

    monkeypatch.setattr(replay_process, "SparkSession", SimpleNamespace(builder=Builder()))
    monkeypatch.setattr(
        replay_process, "ClassArchive", SimpleNamespace(of_environment=lambda: SimpleNamespace(settings=dict))
    )
    monkeypatch.setattr(replay_process, "without_greeting", nullcontext)
    monkeypatch.setattr(sys, "path", ["old"])
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("PYTHONPATH", "old")
    program: Any = SimpleNamespace(python_path=[tmp_path / "a.zip"], jars=[tmp_path / "a.jar", tmp_path / "b.jar"])
    conf = {"spark.sql.ansi.enabled": "false", "spark.app.name": "mine", REQUIRED: "mine", "spark.empty": ""}
    assert replay_process._session(program, conf, 4, tmp_path) == "the session"  # type: ignore[comparison-overlap]
    assert (set_to["master"], set_to["spark.sql.ansi.enabled"]) == ("local[5]", "false")
    assert set_to[REQUIRED] == REQUIRED_SETTINGS[REQUIRED] != "mine"
    assert (set_to["spark.app.name"], set_to["spark.authenticate"]) == ("keyscale-replay", "true")
    assert set_to["spark.jars"] == f"{tmp_path}/a.jar,{tmp_path}/b.jar"
    assert set_to["spark.local.dir"] == str(tmp_path / "spark")
    assert "spark.empty" not in set_to
    assert sys.path == [str(tmp_path / "a.zip"), "old"]
    variables = replay_process.os.environ
    assert variables["PYSPARK_PYTHON"] == sys.executable
    assert variables["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert variables["PYTHONPATH"].split(":")[-2:] == [str(tmp_path / "a.zip"), "old"]


@pytest.mark.parametrize(
    ("first_kept", "following", "is_planned", "found"),
    [
        (8, 12, True, 8),
        (11, 12, True, 11),
        (12, 12, True, 12),
        (13, 12, True, None),
        (12, 12, False, None),
        (0, 12, True, 8),
        (0, 7, False, None),
    ],
)
def test_the_oldest_batch_with_records_is_found_by_halving(
    monkeypatch: pytest.MonkeyPatch, first_kept: int, following: int, is_planned: bool, found: int | None
) -> None:
    looked: list[int] = []

    def of_job(store: str, job_id: str, number: int | None = None) -> Any:
        assert (store, job_id) == ("store", "j")
        planned = object() if is_planned else None
        before = SimpleNamespace(resume=SimpleNamespace(planned=planned))
        return SimpleNamespace(batch_id=following if number is None else number, before=before)

    def has_records(spark: None, topology: str, batch: Any) -> bool:
        assert (spark, topology) == (None, "topology")
        looked.append(batch.batch_id)
        return bool(batch.batch_id >= first_kept)

    monkeypatch.setattr(oldest_records, "RecordedBatch", SimpleNamespace(of_job=of_job))
    monkeypatch.setattr(oldest_records, "_has_records", has_records)
    given: tuple[Any, ...] = (None, "topology", "store", "j", 8)
    assert oldest_records.oldest_with_records(*given) == found
    assert len(looked) <= 3


class Query:
    """A query that gives its batches to a function, or fails."""

    def __init__(self, *batches: int, failure: Any = None) -> None:
        self.batches, self.failure, self.stops = batches, failure, 0
        self.options: tuple[str, str] | None = None
        self.writeStream = self

    def foreachBatch(self, keep: Callable[[Any, int], None]) -> Query:  # noqa: N802 - Spark's name
        self.keep = keep
        return self

    def option(self, name: str, value: str) -> Query:
        self.options = (name, value)
        return self

    def start(self) -> Query:
        for number in self.batches:
            self.keep(SimpleNamespace(localCheckpoint=lambda number=number: f"records of {number}"), number)
        return self

    def exception(self) -> Any:
        return self.failure

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Returns a function that reads the records of batch 9, of which two were of time alone, from a query."""

    def read(query: Query, *, gone: list[str] | None = None, is_planned: bool = True) -> Any:
        written: list[Any] = []
        sources = SimpleNamespace(stream=lambda: query, positions=lambda positions: ("for sources", positions))
        monkeypatch.setattr(recorded_input, "resume_positions", lambda positions, _: positions)
        monkeypatch.setattr(recorded_input, "manifest_positions", lambda store, manifest: (store, manifest))
        monkeypatch.setattr(recorded_input, "sources_of", lambda *_: sources)
        monkeypatch.setattr(recorded_input, "planned_files", lambda positions: [f"{positions}/1", f"{positions}/2"])
        monkeypatch.setattr(
            recorded_input, "missing_files", lambda _, files: [each for each in files if each in (gone or [])]
        )
        directory = SimpleNamespace(location="the positions", write=written.append)
        monkeypatch.setattr(
            recorded_input, "PositionsDirectory", lambda path: directory if path.name == "positions" else None
        )
        resume = SimpleNamespace(
            planned=SimpleNamespace(positions="p") if is_planned else None, time=SimpleNamespace(time_batches=2)
        )
        point = SimpleNamespace(store="s", manifest="m", resume=resume)
        batch: Any = SimpleNamespace(batch_id=9, before=point)
        found = recorded_input.read_records(None, None, batch, tmp_path)  # type: ignore[arg-type] # played
        assert found[0] is sources
        assert written == ([("for sources", ("s", "m"))] if is_planned else [])
        return found[1]

    return read


def test_the_first_batch_of_the_query_has_the_records(recorded: Callable[..., Any]) -> None:
    query = Query(7, 8)
    assert recorded(query) == "records of 7", "Spark does not count the batches of time"
    assert (query.options, query.stops) == (("checkpointLocation", "the positions"), 1)


def test_a_batch_of_time_alone_reads_nothing(recorded: Callable[..., Any]) -> None:
    query = Query(7)
    assert recorded(query, is_planned=False) is None
    assert query.options is None


def test_missing_files_are_counted_before_the_query_begins(recorded: Callable[..., Any]) -> None:
    query = Query(7)
    with pytest.raises(ReplayRecordsGoneError, match=r"batch 9 are gone: 1 of its 2 files, such as p/2"):
        recorded(query, gone=["p/2"])
    assert query.options is None


def test_a_batch_in_the_place_of_the_recorded_one_is_refused(recorded: Callable[..., Any]) -> None:
    with pytest.raises(BatchOrderError, match="Spark's batch 8 came in the place of its batch 7"):
        recorded(Query(8))


def test_the_failure_of_a_query_ends_it_and_says_whether_records_are_gone(
    recorded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_input, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(recorded_input, "typed_failure", lambda failure: failure)
    lost, other = (Query(failure=kind("topic t")) for kind in (SourceRecordsLostError, SourceUnavailableError))
    with pytest.raises(ReplayRecordsGoneError, match="the records of batch 9 are gone: topic t"):
        recorded(lost)
    with pytest.raises(SourceUnavailableError):
        recorded(other)
    assert (lost.stops, other.stops) == (1, 1)


@pytest.mark.parametrize(
    ("post_mortem", "origin", "opened"),
    [
        (True, TaskOrigin("counts", 3, "the traceback"), True),
        (False, TaskOrigin("counts", 3, "the traceback"), False),
        (True, TaskOrigin(), False),
    ],
)
def test_a_failure_is_shown_with_its_place_and_a_debugger_opens_in_a_function_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    post_mortem: bool,
    origin: TaskOrigin,
    opened: bool,
) -> None:
    tracebacks: list[Any] = []
    monkeypatch.setattr(replay_process.pdb, "post_mortem", tracebacks.append)
    monkeypatch.setattr(replay_process, "failed_input", lambda _: "record: {'at': 3}")
    failure = SourceUnavailableError("it failed")
    failure.__context__ = ValueError("three")
    request = ReplayRequest("file:///s", "j", post_mortem=post_mortem)
    replay_process._show_failure(with_origin(failure, origin), request)
    place = ["in operator counts, subtask 3"] if origin.operator_uid else []
    traceback = ["the traceback"] if origin.operator_uid else []
    assert capsys.readouterr().err.splitlines() == [
        "error SOURCE_UNAVAILABLE: it failed",
        *place,
        *traceback,
        "record: {'at': 3}",
        SourceUnavailableError.advice,
    ]
    assert tracebacks == ([None] if opened else [])
