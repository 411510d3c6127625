"""Writes a savepoint from the checkpoint of a Spark query."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.identifiers import BatchId
from keyscale.state.doors.values import HashId
from keyscale.state.doors.writing import NewSavepoint
from keyscale.state_io.argument import ArgumentInvalidError, check_argument, hashing_of
from keyscale.state_io.new_operator import DeclaredState, NewOperator, NewTimers
from keyscale.state_io.savepoint_writer import MAX_PARALLELISM
from keyscale.state_io.spark_writer import runs_here, write_operator
from keyscale.units import counted

from .errors import ImportCountsDifferError, ImportFailedError
from .import_report import ImportedSource, ImportedState, ImportReport
from .input_positions import InputKind, assigned_inputs, converted_positions
from .operator_match import matched_operators
from .spark_checkpoint import SparkCheckpoint
from .spark_operator import SparkStateReader
from .state_plan import Expressions, plan_operator
from .target_program import TargetProgram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from keyscale.state.doors.catalogue import SourcePositions
    from keyscale.state.doors.commits import OperatorSnapshot
    from keyscale.state_io.new_operator import NewState

    from .spark_operator import SparkOperator
    from .state_plan import OperatorPlan, StatePlan


def import_spark_checkpoint(
    spark: SparkSession,
    checkpoint: str,
    *,
    program: str | Path,
    to: str | None,
    parameters: Mapping[str, str] | None = None,
    operators: Mapping[int, str | None] | None = None,
    sources: Mapping[int, str | None] | None = None,
    keys: Mapping[tuple[str, str], str] | None = None,
    values: Mapping[tuple[str, str], str] | None = None,
    max_parallelism: int = MAX_PARALLELISM,
    parallelism: int | None = None,
    hash_id: str = HashId.SPARK,
    scratch: str | None = None,
) -> ImportReport:
    """Writes and publishes a savepoint from a Spark query's checkpoint.

    The savepoint has the state, the source positions and the watermark after the last batch that the query has
    committed. The query must be stopped.

    Args:
        spark: The session, whose executors can import `keyscale` and reach the checkpoint and the store. The program's
            script runs in it up to `env.execute()`.
        checkpoint: The query's `checkpointLocation`.
        program: The `.py` or `.zip` file of the program that goes on.
        to: Where: `<store>/<name>/savepoints/<id>`. None: nothing is written, and the report says what would be taken.
        parameters: The program's parameters.
        operators: The program's operator for a stateful operator of the query, by the number of the latter; None
            leaves it out. By default an operator goes to the only one that fits.
        sources: The program's source for an input of the query, by the input's number; None leaves it out.
        keys: SQL expressions over Spark's `key` for columns of an operator's key, by uid and column. By default a
            column has the name that it has in Spark.
        values: SQL expressions over Spark's `key` and `value` for the values of a state, or for the time of timers in
            milliseconds, by uid and name. By default columns have the names that they have in Spark.
        max_parallelism: The number of key groups, which a job that starts from the savepoint keeps.
        parallelism: The number of tasks that write an operator; None: the session's default. A job may start at any.
        hash_id: How keys are hashed: `spark` or `java`.
        scratch: A directory on each executor with room for twice a task's state; None: the system's.

    Returns:
        What was taken and what was not.

    Raises:
        ArgumentInvalidError: An argument has the wrong type.
        SparkCheckpointError: The directory is no checkpoint, or has no committed batch.
        ImportUnsupportedError: A Spark operator has no counterpart in a savepoint.
        ImportUnmappedError: The place of state or positions in the program is unknown.
        ImportCountsDifferError: A state has another number of entries than Spark has rows; nothing is published.
        ImportFailedError: An expression cannot be computed, or a task has failed; nothing is published.
        KeyscaleError: The program cannot be loaded; or as `keyscale.state_io.write`.
    """
    _check_places(operators, sources, keys, values)
    check_argument("checkpoint", checkpoint, "the query's checkpointLocation as text", str)
    check_argument("program", program, "the path of the program", str, Path)
    check_argument("parallelism", parallelism, "a whole number or None", int, type(None))
    hashing = hashing_of(max_parallelism, hash_id)
    planned = _planned(
        spark,
        SparkCheckpoint.read(spark, checkpoint),
        TargetProgram.load(spark, Path(program), parameters or {}),
        (operators or {}, sources or {}, Expressions(keys or {}, values or {})),
    )
    with _failures_of_spark():
        new = list(planned.new_operators())
    if to is None:
        return planned.report(None, {})
    batch = planned.checkpoint.batch
    savepoint = NewSavepoint.at(to, hashing)
    if planned.positions is not None:
        savepoint = replace(savepoint, batch_id=BatchId(batch.number))
    parallelism = parallelism or min(spark.sparkContext.defaultParallelism, max_parallelism)
    written: list[OperatorSnapshot] = []
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    with savepoint.written(is_private=runs_here(spark)):
        for plan, operator in new:
            with _failures_of_spark():
                rows = _counted(operator.states)
                result = write_operator(savepoint, operator, parallelism, scratch)
            if rows != result.entries:
                raise ImportCountsDifferError(
                    f"operator {plan.uid!r} has the rows {rows} and the entries {result.entries}"
                )
            written.append(result.snapshot)
            counts |= {(plan.uid, name): (rows[name], entries) for name, entries in result.entries.items()}
        savepoint.publish(written, positions=planned.positions, time=planned.program.time_after(batch))
    return planned.report(savepoint.location, counts)


def _check_places(operators: Any, sources: Any, keys: Any, values: Any) -> None:
    """Checks the types of the arguments that are mappings."""
    for name, given in (("operators", operators), ("sources", sources)):
        check_argument(name, given, "a mapping of numbers to uids", Mapping, type(None))
        for number in given or ():
            check_argument(f"a key of {name}", number, "its number in the query", int)
    for name, given in (("keys", keys), ("values", values)):
        check_argument(name, given, "a mapping of pairs of a uid and a name to expressions", Mapping, type(None))
        for pair in given or ():
            check_argument(f"a key of {name}", pair, "a pair of a uid and a name", tuple)
            if len(pair) != len(("uid", "name")):
                raise ArgumentInvalidError(
                    f"a key of {name} has {counted(len(pair), 'part')}; give a pair of a uid and a name"
                )


@dataclass(frozen=True, slots=True)
class _Planned:
    """An import, before anything is written."""

    reader: SparkStateReader
    program: TargetProgram
    operators: Sequence[OperatorPlan]
    inputs: Mapping[str, Sequence[int]]
    positions: SourcePositions | None
    notes: Sequence[str]

    @property
    def checkpoint(self) -> SparkCheckpoint:
        return self.reader.checkpoint

    def new_operators(self) -> Iterator[tuple[OperatorPlan, NewOperator]]:
        """Yields each operator with the frames of its states."""
        keys = {target.uid: target.key for target in self.program.operators}
        for plan in self.operators:
            states = [_new_state(state, self.reader.frame(plan.operator, state.source)) for state in plan.states]
            yield plan, NewOperator(plan.uid, keys[plan.uid], states)

    def report(self, location: str | None, counts: Mapping[tuple[str, str], tuple[int, int]]) -> ImportReport:
        batch = self.checkpoint.batch
        return ImportReport(
            location,
            batch.number,
            batch.next_watermark_ms or None,
            tuple(
                ImportedState(
                    plan.operator.number,
                    state.source.name,
                    plan.uid,
                    state.name,
                    *counts.get((plan.uid, state.name), (None, None)),
                )
                for plan in self.operators
                for state in plan.states
            ),
            tuple(
                ImportedSource(number, uid, self.checkpoint.ends[number])
                for uid, numbers in self.inputs.items()
                for number in numbers
            ),
            tuple(self.notes),
        )


def _planned(
    spark: SparkSession,
    checkpoint: SparkCheckpoint,
    program: TargetProgram,
    mapping: tuple[Mapping[int, str | None], Mapping[int, str | None], Expressions],
) -> _Planned:
    chosen, chosen_sources, given = mapping
    reader = SparkStateReader(spark, checkpoint)
    operators = reader.operators()
    matched = matched_operators(operators, program.operators, chosen, given)
    plans = [
        plan_operator(operator, matched[operator.number], given, checkpoint.batch)
        for operator in operators
        if operator.number in matched
    ]
    kinds = [InputKind.of(end) for end in checkpoint.ends]
    inputs = assigned_inputs(kinds, program.sources, chosen_sources)
    return _Planned(
        reader,
        program,
        plans,
        inputs,
        converted_positions(checkpoint, program.sources, inputs),
        list(_notes(checkpoint, program, operators, plans, inputs)),
    )


def _notes(
    checkpoint: SparkCheckpoint,
    program: TargetProgram,
    operators: Sequence[SparkOperator],
    plans: Sequence[OperatorPlan],
    inputs: Mapping[str, Sequence[int]],
) -> Iterator[str]:
    if checkpoint.uncommitted is not None:
        yield (
            f"batch {checkpoint.uncommitted} of the query is not committed: the job reads its records again, and the"
            " sink of the query may have a part of them"
        )
    taken = {plan.operator.number for plan in plans}
    for operator in operators:
        if operator.number not in taken:
            yield f"operator {operator.number} ({operator.kind or operator.name}) is left out, as asked"
    for plan in plans:
        yield from (f"{plan.uid}: {note}" for note in plan.notes)
    uids = {plan.uid for plan in plans}
    for target in program.operators:
        if target.uid not in uids and target.schema.states:
            yield f"operator {target.uid!r} starts empty"
    yield from _notes_of_inputs(checkpoint, program, inputs)


def _notes_of_inputs(
    checkpoint: SparkCheckpoint, program: TargetProgram, inputs: Mapping[str, Sequence[int]]
) -> Iterator[str]:
    read = {number for numbers in inputs.values() for number in numbers}
    for number in range(len(checkpoint.ends)):
        if number not in read:
            yield f"input {number} is left out, as asked"
    for source in program.sources:
        if source.uid not in inputs:
            yield f"source {source.uid!r} begins where the program says"


@contextmanager
def _failures_of_spark() -> Iterator[None]:
    """Converts a failure of Spark to the line that names its reason.

    Raises:
        ImportFailedError: Spark failed.
    """
    try:
        yield
    except PySparkException as error:
        lines = str(error).splitlines()
        ours = [line for line in lines if line.startswith("keyscale.")]
        raise ImportFailedError(f"Spark cannot compute the rows: {[*ours, *lines][0]}") from error


def _counted(states: Sequence[NewState | DeclaredState | NewTimers]) -> dict[str, int]:
    """Counts the rows of each state in tasks of their own."""
    names = [state.rows.select(F.lit(state.name).alias("state")) for state in states]
    found = {row.state: row["count"] for row in reduce(DataFrame.union, names).groupBy("state").count().collect()}
    return {state.name: found.get(state.name, 0) for state in states}


def _new_state(plan: StatePlan, frame: DataFrame) -> DeclaredState | NewTimers:
    key = F.struct(*[F.expr(expression).alias(name) for name, expression in plan.key.items()])
    rows = frame.select(
        key.alias("key"), *[F.expr(expression).alias(name) for name, expression in plan.columns.items()]
    )
    if plan.schema is not None:
        return DeclaredState(plan.schema, rows)
    namespace = plan.namespace_type
    return NewTimers(plan.name, rows.where("time_ms IS NOT NULL"), namespace)
