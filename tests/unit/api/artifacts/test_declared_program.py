"""A program's declaration as the answer to a check, and as the command line prints it."""

from __future__ import annotations

import pyarrow as pa

from keyscale.api.artifacts.declared_program import check_answer
from keyscale.api.cli.check_output import operator_rows, summary_lines
from keyscale.api.shapes import FailureAnswer
from keyscale.identifiers import OperatorUid
from keyscale.jobs.protocol.program import DeclaredSink, DeclaredSource, ProgramDeclaration
from keyscale.state.documents.manifest import OperatorDeclaration
from keyscale.state.keyed.descriptors import MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.schema import KeyedSchema, TimersSchema
from keyscale.state.restore.program_change import DeclaredOperator

KEY = (("user", "string"),)
STATES = (ValueStateDescriptor("count", pa.int64()), MapStateDescriptor("seen", pa.string(), pa.bool_()))
PROGRAM = ProgramDeclaration(
    operators=(
        DeclaredOperator(
            OperatorUid("count"),
            OperatorDeclaration(
                KEY, KeyedSchema(KEY, tuple(each.stored() for each in STATES), timers=(TimersSchema("late"),))
            ),
            ttls_ms={"seen": 60_000},
        ),
        DeclaredOperator(OperatorUid("plain"), OperatorDeclaration(KEY)),
    ),
    sources=(DeclaredSource("views", ("FileSource", "kafka")),),
    sinks=(DeclaredSink("files", "FileSink"),),
    operator_kinds={"count": "Process"},
)


def test_operators_states_sources_and_sinks_are_shown_without_timers() -> None:
    answer = check_answer(PROGRAM, None)
    assert answer.valid
    count, plain = answer.operators
    assert [(each.name, each.kind, each.declared, each.ttl_ms) for each in count.states] == [
        ("count", "value", "value of int64", None),
        ("seen", "map", "map of string to bool", 60_000),
    ]
    assert [(each.kind, [(column.name, column.type) for column in each.key]) for each in (count, plain)] == [
        ("Process", [("user", "string")]),
        (None, [("user", "string")]),
    ]
    assert [(each.uid, each.kind) for each in (*answer.sources, *answer.sinks)] == [
        ("views", "FileSource, kafka"),
        ("files", "FileSink"),
    ]


def test_each_state_has_a_row_and_sources_sinks_and_the_verdict_a_line() -> None:
    answer = check_answer(PROGRAM, None).model_dump(mode="json")
    assert [tuple(row.values()) for row in operator_rows(answer)] == [
        ("count", "Process", "user (string)", "count", "value of int64"),
        ("count", "Process", "user (string)", "seen", "map of string to bool; TTL: 60 s"),
        ("plain", None, "user (string)", "", ""),
    ]
    assert list(summary_lines(answer)) == [
        "source views: FileSource, kafka",
        "sink files: FileSink",
        "the program can be started",
    ]


def test_a_failure_is_shown_with_its_advice_unless_the_advice_needs_a_job() -> None:
    failure = FailureAnswer(code="A", message="wrong", traceback="at line 1", operator_uid="count", advice="Mend it.")

    def shown(failure: FailureAnswer) -> list[str]:
        return list(summary_lines(check_answer(None, failure).model_dump(mode="json")))

    assert shown(failure) == ["A: wrong (operator count)\nat line 1\nMend it."]
    of_a_job = failure.model_copy(update={"advice": "Then `./keyscale jobs start JOB`.", "traceback": None})
    assert shown(of_a_job) == ["A: wrong (operator count)"]
