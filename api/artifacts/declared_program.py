"""A program's declaration as an answer; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.state.doors.planning import operator_changes

from .schemas import (
    DeclaredEndpointAnswer,
    DeclaredOperatorAnswer,
    DeclaredStateAnswer,
    KeyColumnAnswer,
    ProgramCheckAnswer,
)

if TYPE_CHECKING:
    from keyscale.jobs.protocol.program import ProgramDeclaration
    from keyscale.state.doors.planning import DeclaredOperator

    from ..shapes import FailureAnswer


def check_answer(declaration: ProgramDeclaration | None, failure: FailureAnswer | None) -> ProgramCheckAnswer:
    """Returns the answer to a check of a program.

    Args:
        declaration: Everything that the program declares; None if it cannot be loaded.
        failure: Why it cannot be loaded.
    """
    if declaration is None:
        return ProgramCheckAnswer(valid=False, failure=failure, operators=[], sources=[], sinks=[])
    kinds = declaration.operator_kinds
    return ProgramCheckAnswer(
        valid=True,
        failure=None,
        operators=[_operator(each, kinds.get(each.uid)) for each in declaration.operators],
        sources=[DeclaredEndpointAnswer(uid=each.uid, kind=", ".join(each.kinds)) for each in declaration.sources],
        sinks=[DeclaredEndpointAnswer(uid=each.uid, kind=each.kind) for each in declaration.sinks],
    )


def _operator(operator: DeclaredOperator, kind: str | None) -> DeclaredOperatorAnswer:
    [as_new] = operator_changes({}, {}, [operator])
    return DeclaredOperatorAnswer(
        uid=operator.uid,
        kind=kind,
        key=[KeyColumnAnswer(name=name, type=type_) for name, type_ in operator.declaration.key_schema],
        states=[
            DeclaredStateAnswer(
                name=each.name, kind=each.kind, declared=each.declared, ttl_ms=operator.ttls_ms.get(each.name)
            )
            for each in as_new.states
            if each.kind != "timers"  # which every operator with a function has
        ],
    )
