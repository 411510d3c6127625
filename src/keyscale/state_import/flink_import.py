"""Writes a savepoint from a savepoint of Flink."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.identifiers import BatchId
from keyscale.state.doors.values import HashId
from keyscale.state.doors.writing import NewSavepoint, encoder_of, schema_of_key
from keyscale.state_io.argument import check_argument, hashing_of
from keyscale.state_io.new_operator import with_states
from keyscale.state_io.savepoint_writer import write_operator

from .errors import ImportCountsDifferError, ImportUnmappedError, ImportUnsupportedError
from .flink_keyed_state import read_header, read_rows
from .flink_metadata import operator_id, read_metadata
from .flink_offsets import as_query, kafka_offsets
from .flink_plan import plan_states
from .import_report import FlinkImportReport, ImportedFlinkSource, ImportedFlinkState
from .input_positions import InputKind, converted_positions
from .target_program import TargetProgram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from keyscale.state.doors.commits import OperatorSnapshot
    from keyscale.state.doors.writing import KeyedSchema, KeyHashing, RowEncoder, StoredEntries

    from .flink_keyed_state import FlinkRow, KeyedHeader
    from .flink_metadata import FlinkOperator, KeyGroupsFile
    from .flink_offsets import Offsets
    from .flink_plan import FlinkOperatorPlan, FlinkPlan
    from .target_program import TargetOperator

_TOGETHER = 4096


def import_flink_savepoint(
    spark: SparkSession,
    location: str,
    *,
    program: str | Path,
    to: str | None,
    parameters: Mapping[str, str] | None = None,
    operators: Mapping[str, str | None] | None = None,
    states: Mapping[tuple[str, str], str | None] | None = None,
    max_parallelism: int | None = None,
    parallelism: int = 1,
    hash_id: str = HashId.SPARK,
    scratch: Path | None = None,
) -> FlinkImportReport:
    """Writes and publishes a savepoint from a canonical savepoint of Flink.

    No Flink is needed: the files are read as they are.

    Args:
        spark: The session in which the program's script runs up to `env.execute()`.
        location: The directory of Flink's savepoint, on this host.
        program: The `.py` or `.zip` file of the program that goes on.
        to: Where: `<store>/<name>/savepoints/<id>`. None: nothing is written, and the report says what would be taken.
        parameters: The program's parameters.
        operators: The program's operator for an operator of Flink, by the latter's uid or id; None leaves it out. By
            default an operator or a source goes to the one with the same uid.
        states: The program's state for a state of Flink, by the program's uid and Flink's name; None leaves it out. By
            default a state goes to the state with the same name.
        max_parallelism: The number of key groups, which a job that starts from the savepoint keeps; None: Flink's.
        parallelism: In how many parts the state is written; a job may start at any other.
        hash_id: How keys are hashed: `spark`, or `java` as in Flink.
        scratch: A directory with room for twice the state; None: the system's.

    Returns:
        What was taken and what was not.

    Raises:
        ArgumentInvalidError: An argument has the wrong type.
        FlinkSavepointError: The directory is no savepoint, or is damaged.
        ImportUnsupportedError: The savepoint is not canonical, or has an unknown version.
        ImportUnmappedError: The place of state in the program is unknown, or has another type.
        ImportCountsDifferError: A state has another number of entries than Flink has; nothing is published.
        KeyscaleError: The program cannot be loaded; or as `keyscale.state_io.write`.
    """
    check_argument("location", location, "the savepoint's directory as text", str)
    check_argument("program", program, "the path of the program", str, Path)
    check_argument("parallelism", parallelism, "a whole number", int)
    for name, given in (("operators", operators), ("states", states)):
        check_argument(name, given, "a mapping", Mapping, type(None))
    hashing_of(1 if max_parallelism is None else max_parallelism, hash_id)
    found = read_metadata(location)
    target = TargetProgram.load(spark, Path(program), parameters or {})
    matched = _matched(found, target, operators or {})
    planned = [_planned(operator, matched[operator.id], states or {}) for operator in found if operator.id in matched]
    at_ms = now_ms()
    sources = _offsets(found, target, operators or {})
    query = as_query([*sources.values()], at_ms)
    notes = [*_notes(found, matched, target, sources), *(note for each in planned for note in each.notes())]
    if to is None:
        return _report(None, planned, sources, notes, is_written=False)
    most = max_parallelism
    if most is None:
        most = max((each.operator.max_parallelism for each in planned), default=1)
    savepoint = NewSavepoint.at(to, hashing_of(most, hash_id))
    positions = converted_positions(query, target.sources, {uid: [number] for number, uid in enumerate(sources)})
    if positions is not None:
        savepoint = replace(savepoint, batch_id=BatchId(0))
    written: list[OperatorSnapshot] = []
    with savepoint.written(), tempfile.TemporaryDirectory(prefix="keyscale-write-", dir=scratch) as directory:
        for each in planned:
            schema = each.schema()
            entries = each.entries(schema, savepoint.hashing, at_ms)
            written.append(
                write_operator(
                    savepoint, each.target.uid, schema, entries, parallelism=parallelism, scratch=Path(directory)
                )
            )
            each.check_counts()
        savepoint.publish(written, positions=positions, time=target.time_after(query.batch))
    return _report(savepoint.location, planned, sources, notes, is_written=True)


@dataclass(slots=True)
class _PlannedOperator:
    """An operator of Flink, before and while its state is written."""

    operator: FlinkOperator
    target: TargetOperator
    files: Sequence[tuple[KeyGroupsFile, KeyedHeader, FlinkOperatorPlan]]
    rows: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)

    def plans(self) -> dict[str, FlinkPlan]:
        """Returns the plan of each state of the program."""
        return {plan.name: plan for _, _, file in self.files for plan in file.states.values()}

    def notes(self) -> list[str]:
        """Returns each note of its files once."""
        return [*dict.fromkeys(f"{self.target.uid}: {note}" for _, _, file in self.files for note in file.notes)]

    def schema(self) -> KeyedSchema:
        """Returns the schema of the states that are written."""
        return with_states(schema_of_key(self.target.key), [plan.declared for plan in self.plans().values()])

    def entries(self, schema: KeyedSchema, hashing: KeyHashing, at_ms: int) -> Iterator[tuple[str, StoredEntries]]:
        """Yields stored entries of the states, in the order of Flink's files."""
        encoders = {name: encoder_of(schema, name, hashing, at_ms, event_time_ms=at_ms) for name in self.plans()}
        for file, header, plan in self.files:
            waiting: dict[int, list[FlinkRow]] = defaultdict(list)
            for _, number, rows in read_rows(self.operator, file, header):
                if number in plan.states:
                    waiting[number].extend(rows)
                    if len(waiting[number]) >= _TOGETHER:
                        yield self._encoded(plan.states[number], waiting.pop(number), encoders, at_ms)
            for number, rows in waiting.items():
                yield self._encoded(plan.states[number], rows, encoders, at_ms)

    def _encoded(
        self, plan: FlinkPlan, rows: Sequence[FlinkRow], encoders: Mapping[str, RowEncoder], at_ms: int
    ) -> tuple[str, StoredEntries]:
        found = encoders[plan.name].encode(plan.batch(rows, at_ms))
        self.rows[plan.name] += len(rows)
        self.written[plan.name] += len(found)
        return plan.name, found

    def check_counts(self) -> None:
        """Checks that each row has become an entry.

        Raises:
            ImportCountsDifferError: Some have not.
        """
        if self.rows != self.written:
            raise ImportCountsDifferError(
                f"operator {self.target.uid!r} has the rows {dict(self.rows)} and the entries {dict(self.written)}"
            )


def _planned(
    operator: FlinkOperator, target: TargetOperator, states: Mapping[tuple[str, str], str | None]
) -> _PlannedOperator:
    if target.has_compact_keys:
        raise ImportUnsupportedError(
            f"operator {target.uid!r} keeps hashes or filters; declare an exact deduplicate() for Flink's keys"
        )
    headers = [(file, read_header(file)) for file in operator.keyed]
    return _PlannedOperator(
        operator, target, [(file, header, plan_states(header, target, states)) for file, header in headers]
    )


def _matched(
    found: Sequence[FlinkOperator], program: TargetProgram, chosen: Mapping[str, str | None]
) -> dict[str, TargetOperator]:
    """Returns the program's operator for each Flink operator with keyed state."""
    known = {target.uid: target for target in program.operators}
    sources = {source.uid for source in program.sources}
    ids = {operator.id for operator in found}
    given: dict[str, str | None] = {}
    for name, uid in chosen.items():
        number = name if name in ids else operator_id(name)
        if number not in ids:
            raise ImportUnmappedError(f"the savepoint has no operator {name!r}; its operators are {_listed(ids)}")
        if uid is not None and uid not in {*known, *sources}:
            raise ImportUnmappedError(f"the program has no operator {uid!r}; its operators are {_listed(known)}")
        given[number] = uid
    of_uid = {operator_id(uid): uid for uid in known}
    matched: dict[str, TargetOperator] = {}
    for operator in found:
        uid = given[operator.id] if operator.id in given else of_uid.get(operator.id)
        if uid in known and operator.keyed:
            matched[operator.id] = known[uid]
        elif operator.keyed and operator.id not in given:
            raise ImportUnmappedError(
                f"no operator of the program has the uid of Flink's operator {operator.uid or operator.id}; give"
                f" --operator {operator.uid or operator.id}=UID or --drop-operator; the program's operators are"
                f" {_listed(known)}"
            )
    uids = [target.uid for target in matched.values()]
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        raise ImportUnmappedError(f"two operators of Flink would go to operator {twice[0]!r}")
    return matched


def _offsets(
    found: Sequence[FlinkOperator], target: TargetProgram, chosen: Mapping[str, str | None]
) -> dict[str, Offsets]:
    """Returns the offsets of each Kafka source of the program, by uid.

    Raises:
        ImportUnmappedError: A source of the program reads something else.
    """
    known = {source.uid: source for source in target.sources}
    wanted: dict[str, str | None] = {operator_id(uid): uid for uid in known}
    for name, uid in chosen.items():
        wanted |= {name: uid, operator_id(name): uid}
    taken: dict[str, Offsets] = {}
    for operator in found:
        uid = wanted.get(operator.id)
        if uid not in known or (offsets := kafka_offsets(operator)) is None:
            continue
        kinds = known[uid].kinds
        if len(kinds) != 1 or not InputKind.KAFKA.fits(kinds[0]):
            raise ImportUnmappedError(f"source {uid!r} reads {', '.join(kinds)}, and Flink's source reads Kafka")
        taken[uid] = offsets
    return taken


def _notes(
    found: Sequence[FlinkOperator],
    matched: Mapping[str, TargetOperator],
    program: TargetProgram,
    sources: Mapping[str, Offsets],
) -> Iterator[str]:
    targets = program.operators
    uids_of_program = [*(each.uid for each in targets), *(each.uid for each in program.sources)]
    names = {operator_id(uid): uid for uid in uids_of_program}
    for operator in found:
        name = operator.uid or names.get(operator.id, operator.id)
        if operator.keyed and operator.id not in matched:
            yield f"Flink's operator {name} is left out, as asked"
        if operator.elements and name not in sources:
            states = ", ".join(map(repr, sorted({state for file in operator.elements for state in file.offsets})))
            yield f"the operator state {states} of Flink's operator {name} is left out"
        if operator.problem:
            yield f"Flink's operator {name}: {operator.problem}"
    uids = {target.uid for target in matched.values()}
    for target in targets:
        if target.uid not in uids and target.schema.states:
            yield f"operator {target.uid!r} starts empty"
    for source in program.sources:
        if source.uid not in sources:
            yield f"source {source.uid!r} begins where the program says"


def _report(
    location: str | None,
    planned: Sequence[_PlannedOperator],
    sources: Mapping[str, Offsets],
    notes: Sequence[str],
    *,
    is_written: bool,
) -> FlinkImportReport:
    states = tuple(
        ImportedFlinkState(
            each.operator.id,
            plan.source.name,
            each.target.uid,
            name,
            each.rows[name] if is_written else None,
            each.written[name] if is_written else None,
        )
        for each in planned
        for name, plan in each.plans().items()
    )
    taken = tuple(ImportedFlinkSource(uid, json.dumps(offsets)) for uid, offsets in sources.items())
    return FlinkImportReport(location, states, taken, tuple(notes))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names))) or "none"
