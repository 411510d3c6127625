"""Writes a savepoint from rows, in this process.

`keyscale.state_io.spark_writer` writes a savepoint from DataFrames, in parallel tasks.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keyscale.clock import now_ms
from keyscale.state.doors.keyed import StateSchemaMismatchError
from keyscale.state.doors.values import HashId
from keyscale.state.doors.writing import (
    KeyHashing,
    NewSavepoint,
    NewSubtask,
    SubtaskWriter,
    encoder_of,
    operator_snapshot,
)

from .argument import check_argument, hashing_of, items_of
from .new_operator import NewOperator, batches_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keyscale.state.doors.commits import OperatorSnapshot
    from keyscale.state.doors.keyed import OperatorStateSnapshot
    from keyscale.state.doors.writing import KeyedSchema, StoredEntries

    from .new_operator import DeclaredState, NewState, NewTimers

MAX_PARALLELISM = 128
MEMORY_BYTES = 256 << 20


def write(
    location: str,
    operators: Sequence[NewOperator],
    *,
    max_parallelism: int = MAX_PARALLELISM,
    parallelism: int = 1,
    hash_id: str = HashId.SPARK,
    scratch: Path | None = None,
) -> str:
    """Writes a savepoint from rows, and publishes it.

    Args:
        location: Where: `<store>/<name>/savepoints/<id>`. The name is that of a job, or any other.
        operators: The operators with their state.
        max_parallelism: The number of key groups, which a job that starts from the savepoint keeps.
        parallelism: In how many parts the state is written; a job may start at any other.
        hash_id: How keys are hashed: `spark` or `java`.
        scratch: A directory with room for twice the state; None: the system's directory for temporary files.

    Returns:
        The location of the savepoint, for `jobs start --from`.

    Raises:
        ArgumentInvalidError: An argument has the wrong type.
        LocationError: The location cannot be a savepoint's.
        SavepointExistsError: The location has a savepoint already.
        RowsInvalidError: Rows do not fit their state, or two rows are of the same key.
        SerializationError, UnsupportedTypeError: A value does not have the declared type.
        StateSchemaMismatchError: Two states of an operator have the same name.
        KeyGroupError: A parallelism is out of bounds.
        DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        StoreUnavailableError: The object store is unavailable.
    """
    operators = items_of("operators", operators, "a NewOperator", NewOperator)
    check_argument("parallelism", parallelism, "a whole number", int)
    savepoint = NewSavepoint.at(location, hashing_of(max_parallelism, hash_id))
    check_operators(operators)
    savepoint.ranges(parallelism)  # refuses a parallelism that is out of bounds
    with savepoint.written(), tempfile.TemporaryDirectory(prefix="keyscale-write-", dir=scratch) as directory:
        savepoint.publish([write_new(savepoint, operator, parallelism, Path(directory)) for operator in operators])
    return savepoint.location


def write_new(savepoint: NewSavepoint, operator: NewOperator, parallelism: int, scratch: Path) -> OperatorSnapshot:
    """Writes the files of a new operator; raises as `write`."""
    schema = operator.schema
    return write_operator(
        savepoint,
        operator.uid,
        schema,
        stored_rows(operator.states, schema, savepoint.hashing),
        parallelism=parallelism,
        scratch=scratch,
        operator_state=operator.operator_snapshots(parallelism),
    )


def stored_rows(
    states: Iterable[NewState | DeclaredState | NewTimers], schema: KeyedSchema, hashing: KeyHashing
) -> Iterator[tuple[str, StoredEntries]]:
    """Yields the stored entries of states, each with its name."""
    at_ms = now_ms()
    for state in states:
        encoder = encoder_of(schema, state.name, hashing, at_ms)
        for batch in batches_of(state.name, state.rows):
            yield state.name, encoder.encode(batch)


def write_operator(
    savepoint: NewSavepoint,
    uid: str,
    schema: KeyedSchema | None,
    entries: Iterable[tuple[str, StoredEntries]],
    *,
    parallelism: int,
    scratch: Path,
    operator_state: Sequence[OperatorStateSnapshot] = (),
) -> OperatorSnapshot:
    """Writes the files of an operator's subtasks.

    Args:
        savepoint: The new savepoint.
        uid: The operator.
        schema: Its schema; None: it has no keyed state.
        entries: Stored entries, each with the name of its state or timers.
        parallelism: The number of subtasks.
        scratch: A directory with room for twice the operator's state.
        operator_state: The operator state of each subtask; empty: there is none.

    Raises:
        KeyscaleError: As `write`.
    """
    ranges = savepoint.ranges(parallelism)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                SubtaskWriter(
                    NewSubtask(savepoint, uid, schema, index, key_groups), scratch, MEMORY_BYTES // parallelism
                )
            )
            for index, key_groups in enumerate(ranges)
        ]
        for name, some in entries:
            if parallelism == 1:
                writers[0].add(name, some)
                continue
            subtasks = some.subtasks(savepoint.hashing.max_parallelism, parallelism)
            for index in np.unique(subtasks).tolist():
                writers[index].add(name, some.take(np.flatnonzero(subtasks == index)))
        states: Sequence[OperatorStateSnapshot | None] = operator_state or [None] * parallelism
        handles = [writer.finish(state) for writer, state in zip(writers, states, strict=True)]
        return operator_snapshot(uid, schema, handles)


def check_operators(operators: Sequence[NewOperator]) -> None:
    """Checks that each operator, and each state in it, is declared once.

    Raises:
        StateSchemaMismatchError: One is declared twice.
    """
    for what, names in [
        ("operator", [each.uid for each in operators]),
        *(
            (f"state of operator {each.uid!r}", [state.name for state in (*each.states, *each.operator_states)])
            for each in operators
        ),
    ]:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StateSchemaMismatchError(f"{what} {twice[0]!r} is written twice")
