"""Matches the operators of a Spark query with a program's operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import ImportUnmappedError, ImportUnsupportedError
from .spark_operator import described
from .state_plan import is_window, missing_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .spark_operator import SparkOperator
    from .state_plan import Expressions
    from .target_program import TargetOperator


def matched_operators(
    operators: Sequence[SparkOperator],
    targets: Sequence[TargetOperator],
    chosen: Mapping[int, str | None],
    given: Expressions,
) -> dict[int, TargetOperator]:
    """Returns the program's operator for each operator of the query.

    An operator of the query goes to the only operator of the program that is its usual counterpart and has the same
    columns in its key, or else to the only operator that is left.

    Args:
        operators: The stateful operators of the query.
        targets: The operators of the program.
        chosen: The uid for an operator as the user names it; None leaves the operator out.
        given: The user's expressions.

    Raises:
        ImportUnsupportedError: An operator of the query cannot be imported, and is not left out.
        ImportUnmappedError: The counterpart of an operator is unknown.
    """
    known = {target.uid: target for target in targets}
    _check_chosen(operators, known, chosen)
    for operator in operators:
        if operator.kind is None and chosen.get(operator.number, "") is not None:
            raise ImportUnsupportedError(
                f"operator {operator.number} of the query ({operator.name}) cannot be imported: {operator.reason}"
            )
    found = {number: known[uid] for number, uid in chosen.items() if uid is not None}
    open_operators = [operator for operator in operators if operator.number not in chosen]
    free = [target for target in targets if target not in found.values()]
    for operator in open_operators:
        target = _counterpart(operator, free, given)
        if target is None and len(open_operators) == len(free) == 1:
            target = free[0]
        if target is None:
            raise ImportUnmappedError(
                f"the counterpart of operator {operator.number} is unknown; the operators of the query are"
                f" {described(operators)}, and the operators of the program are {_uids(targets)}"
            )
        found[operator.number] = target
    uids = [target.uid for target in found.values()]
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        raise ImportUnmappedError(f"two operators of the query would go to operator {twice[0]!r}")
    return found


def _check_chosen(
    operators: Sequence[SparkOperator], known: Mapping[str, TargetOperator], chosen: Mapping[int, str | None]
) -> None:
    numbers = {operator.number for operator in operators}
    for number, uid in chosen.items():
        if number not in numbers:
            raise ImportUnmappedError(f"the query has no operator {number}; its operators are {described(operators)}")
        if uid is not None and uid not in known:
            raise ImportUnmappedError(f"the program has no operator {uid!r}; its operators are {_uids(known.values())}")


def _counterpart(
    operator: SparkOperator, targets: Sequence[TargetOperator], given: Expressions
) -> TargetOperator | None:
    if operator.kind is None:
        return None
    usual = [target for target in targets if target.continues(operator.kind)]
    if any(is_window(field) for state in operator.states for field in state.key):
        usual = [target for target in usual if target.windowing is not None] or usual
    if len(usual) > 1:
        usual = [
            target for target in usual if not any(missing_columns(state, target, given) for state in operator.states)
        ]
    return usual[0] if len(usual) == 1 else None


def _uids(targets: Iterable[TargetOperator]) -> str:
    return ", ".join(repr(target.uid) for target in targets) or "none"
