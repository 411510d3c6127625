"""The declarations of a program, found without Spark: scripts that fail before they need it, and graphs of streams."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pytest

from keyscale.errors import KeyscaleError
from keyscale.identifiers import OperatorUid
from keyscale.jobs.examples import page_views
from keyscale.jobs.functions.process_function import KeyedProcessFunction
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.failures import origin_of, typed_failure
from keyscale.jobs.protocol.program import (
    ANSWER_FILE,
    QUESTION_FILE,
    DeclaredSink,
    DeclaredSource,
    ProgramAnswer,
    ProgramQuestion,
)
from keyscale.jobs.protocol.specification import FixedDelayRestart
from keyscale.jobs.runtime.driver import program_loader
from keyscale.jobs.runtime.driver.program_loader import declared_operators, load
from keyscale.jobs.runtime.driver.run_outcome import failure_of
from keyscale.jobs.runtime.errors import JobNotDeclaredError, JobScriptError
from keyscale.jobs.streams.streams import DataStream
from keyscale.state.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.schema import text_of
from keyscale.state.keyed.ttl import Ttl

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = ProgramQuestion("program.py", {"a": "1"}, 128, 2)
SCHEMA = pa.schema([("view_id", pa.string()), ("page", pa.string())])


class Declares(KeyedProcessFunction):
    """Declares a state when it is opened, another one later, and operator state."""

    def open(self, context):
        self.context = context
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), Ttl(1000)))
        self.buffer = context.get_operator_list_state(ListStateDescriptor("buffer", pa.string()))

    def process_element(self, row, context):  # noqa: ARG002 - the signature of the base class
        self.context.get_state(ValueStateDescriptor("later", pa.int64()))


class Fails(KeyedProcessFunction):
    def open(self, context):  # noqa: ARG002 - the signature of the base class
        raise LookupError("no model here")

    def process_element(self, row, context):  # noqa: ARG002 - the signature of the base class
        yield row


def graph_of(function):
    builder = TopologyBuilder()
    views = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    views.key_by("page").process(function, output=SCHEMA).uid("counts").sink_to(cast("Any", None)).uid("out")
    return builder.build()


def test_every_operator_is_opened_and_shows_what_it_declares_then() -> None:
    [operator] = declared_operators(graph_of(Declares()), QUESTION)
    schema = operator.declaration.schema
    assert schema is not None
    assert [text_of(state) for state in schema.states] == ["value of int64, with a TTL of processing time"]
    assert operator.ttls_ms == {"total": 1000}
    assert operator.declaration.key_schema == (("page", "string"),)
    assert [*operator.operator_state] == ["buffer"]


def test_operators_of_the_platform_show_their_states_too() -> None:
    builder = TopologyBuilder()
    views = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    page_views.declare(views).sink_to(cast("Any", None)).uid("files")
    found = declared_operators(builder.build(), QUESTION)
    assert found
    assert all(operator.declaration.schema and operator.declaration.schema.states for operator in found)


def test_a_function_that_fails_when_it_is_opened_is_named_with_its_traceback() -> None:
    with pytest.raises(KeyscaleError, match="LookupError: no model here") as failed:
        declared_operators(graph_of(Fails()), QUESTION)
    assert origin_of(failed.value).operator_uid == "counts"
    assert 'raise LookupError("no model here")' in (origin_of(failed.value).user_traceback or "")


class Sees(KeyedProcessFunction):
    """Fails with what it sees of its subtask."""

    def open(self, context):
        raise LookupError(f"{context.subtask_index} of {context.parallelism}, {context.max_parallelism} key groups")

    def process_element(self, row, context):  # noqa: ARG002 - the signature of the base class
        yield row


def test_a_function_is_opened_as_the_first_subtask_at_the_parallelism_of_the_question() -> None:
    with pytest.raises(KeyscaleError, match="LookupError: 0 of 2, 128 key groups"):
        declared_operators(graph_of(Sees()), QUESTION)


def test_a_script_that_raises_is_shown_with_its_exception(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("raise ZeroDivisionError('of the script')\n")
    with pytest.raises(JobScriptError, match="ZeroDivisionError: of the script"):
        load(cast("Any", None), QUESTION, tmp_path)


def test_a_wrong_declaration_is_shown_with_the_lines_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from keyscale import ValueStateDescriptor\n\ndef declare():\n    ValueStateDescriptor('n', int)\n\ndeclare()\n"
    )
    with pytest.raises(KeyscaleError, match=r"declare pa\.int64\(\)") as refused:
        load(cast("Any", None), QUESTION, tmp_path)
    file = tmp_path / "program.py"
    assert origin_of(refused.value).user_traceback == (
        "Traceback (most recent call last):\n"
        f'  File "{file}", line 6, in <module>\n    declare()\n'
        f"  File \"{file}\", line 4, in declare\n    ValueStateDescriptor('n', int)"
    )


def test_a_script_that_declares_no_job_is_refused_and_has_its_parameters(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "program.py").write_text(
        "import json, pathlib\nfrom keyscale import StreamEnvironment\n"
        f"pathlib.Path({str(seen)!r}).write_text(json.dumps(dict(StreamEnvironment.current().parameters)))\n"
    )
    with pytest.raises(JobNotDeclaredError):
        load(cast("Any", None), QUESTION, tmp_path)
    assert json.loads(seen.read_text()) == {"a": "1"}


def test_a_script_shows_when_it_is_restarted_and_how_often_it_begins_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyscale.jobs.runtime.driver.program_loader.kinds_of", lambda _: ())  # there is no DataFrame
    (tmp_path / "program.py").write_text(
        "import pyarrow as pa\nfrom keyscale import FixedDelayRestart, StreamEnvironment\n"
        "from keyscale.jobs.streams.streams import DataStream\n"
        "env = StreamEnvironment.current()\n"
        "env.set_restart_strategy(FixedDelayRestart(attempts=3, delay_ms=700))\nenv.set_batch_interval(250)\n"
        "source = env._builder.add_source(None, pa.schema([('view_id', pa.string())]))\n"
        "DataStream(None, env._builder, source, None).sink_to(None).uid('out')\nenv.execute()\n"
    )
    declared = load(cast("Any", None), QUESTION, tmp_path)
    assert declared.restart == {"type": "fixed-delay", "attempts": 3, "delay_ms": 700}
    assert declared.batch_interval_ms == 250


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a question, for a program in a process of its own."""
    question = ProgramQuestion("program.py", {"a": "1"}, 128, 2)
    (tmp_path / QUESTION_FILE).write_bytes(msgspec.json.encode(question))
    monkeypatch.setenv("KEYSCALE_WORK_DIR", str(tmp_path))
    builder = SimpleNamespace(getOrCreate=lambda: "spark")
    monkeypatch.setattr(program_loader, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(program_loader, "end_with_parent", lambda: None)
    monkeypatch.setattr(program_loader, "configure_logging", lambda *_: None)
    limits: list[Any] = []
    limited = SimpleNamespace(RLIMIT_AS="memory", setrlimit=lambda *given: limits.append(given))
    monkeypatch.setattr(program_loader, "resource", limited)
    yield tmp_path
    assert limits == [("memory", (8 << 30, 8 << 30))], "before the script runs"


def answer_in(directory: Path) -> ProgramAnswer:
    left = {path.name for path in directory.iterdir()}
    assert left == {QUESTION_FILE, ANSWER_FILE}, "the answer appears in one step"
    return msgspec.json.decode((directory / ANSWER_FILE).read_bytes(), type=ProgramAnswer)


def test_the_answer_to_a_question_is_the_declaration(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = graph_of(Declares())

    def declared(spark: Any, artifact: Any, parameters: Any) -> Any:
        assert (spark, artifact.path, parameters) == ("spark", asked / "program.py", {"a": "1"})
        return topology, FixedDelayRestart(attempts=3, delay_ms=700)

    monkeypatch.setattr(program_loader, "declare", declared)
    monkeypatch.setattr(program_loader, "kinds_of", lambda _: ("kafka",))
    assert program_loader.main() == 0
    answer = answer_in(asked)
    assert answer.failure is None
    assert answer.declaration is not None
    declaration = answer.declaration
    assert [operator.uid for operator in declaration.operators] == ["counts"]
    assert declaration.sources == (DeclaredSource(OperatorUid("source"), ("kafka",)),)
    assert declaration.sinks == (DeclaredSink(OperatorUid("out"), "NoneType"),)
    assert declaration.operator_kinds == {"counts": "Process"}
    assert (declaration.batch_interval_ms, declaration.restart) == (
        0,
        {"type": "fixed-delay", "attempts": 3, "delay_ms": 700},
    )


@pytest.mark.parametrize("raised", [LookupError("no model"), SystemExit(3), JobNotDeclaredError("no job")])
def test_whatever_a_script_raises_is_the_answer(
    asked: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    def load(*_: Any) -> Any:
        raise raised

    monkeypatch.setattr(program_loader, "load", load)
    assert program_loader.main() == 0
    answer = answer_in(asked)
    assert answer.declaration is None
    assert answer.failure is not None
    expected = failure_of(typed_failure(raised))
    assert (answer.failure["code"], answer.failure["message"]) == (expected.code, expected.message)
