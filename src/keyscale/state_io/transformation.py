"""Writes a changed copy of a checkpoint or savepoint.

Values that stay as they are are neither decoded nor encoded. Operators that stay as they are, or get another uid, are
copied inside the store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from keyscale.identifiers import OperatorUid
from keyscale.state.doors.commits import OperatorDeclaration, OperatorSnapshot
from keyscale.state.doors.keyed import OperatorStateSnapshot, StateSchemaMismatchError, check_name, redistribute
from keyscale.state.doors.reading import CheckpointReader, StatePoint, UnknownStateError, read_operator_state
from keyscale.state.doors.writing import KeyedSchema, KeyHashing, NewSavepoint, StoredEntries, rehashed

from .argument import ArgumentInvalidError, check_argument, hashing_of, items_of
from .new_operator import NewOperator, new_states, with_states
from .savepoint_writer import check_operators, stored_rows, write_new, write_operator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keyscale.state.doors.catalogue import Manifest

    from .new_operator import NewState, NewTimers

_ENTRIES_AT_A_TIME = 65_536


@dataclass(frozen=True, slots=True)
class ChangedOperator:
    """What becomes of an operator in a changed copy.

    Attributes:
        uid: Its new uid; None: it keeps its uid.
        states: The new name of each state, or of timers; None drops it. Other states stay as they are.
        new: States and timers that are written from rows, added or in the place of one with the same name.
    """

    uid: str | None = None
    states: Mapping[str, str | None] = field(default_factory=dict)
    new: Sequence[NewState | NewTimers] = ()

    def __post_init__(self) -> None:
        check_argument("ChangedOperator.uid", self.uid, "a uid as text, or None", str, type(None))
        if self.uid == "":
            raise ArgumentInvalidError("ChangedOperator.uid is empty; give a name, or None to keep the uid")
        check_argument("ChangedOperator.states", self.states, "a mapping of names to new names", Mapping)
        object.__setattr__(self, "new", new_states("ChangedOperator.new", self.new))  # frozen

    @property
    def keeps_files(self) -> bool:
        """Whether the operator's files stay as they are."""
        return not self.states and not self.new


def transform(
    source: str,
    target: str,
    operators: Mapping[str, ChangedOperator | None] | None = None,
    *,
    new: Sequence[NewOperator] = (),
    max_parallelism: int | None = None,
    hash_id: str | None = None,
    scratch: Path | None = None,
) -> str:
    """Writes a changed copy of a checkpoint or savepoint, and publishes it.

    The copy has the source positions, times and operator state of the source.

    Args:
        source: The location of the checkpoint or savepoint.
        target: Where: `<store>/<job>/savepoints/<id>`, in the store of the source.
        operators: The changed operators, by uid; None drops one. Others stay as they are.
        new: Operators that are written from rows, also in the place of a dropped one.
        max_parallelism: Another number of key groups; None: that of the source.
        hash_id: Another hash of keys; None: that of the source.
        scratch: A directory with room for twice an operator's state; None: the system's.

    Returns:
        The location of the new savepoint, for `jobs start --from`.

    Raises:
        ArgumentInvalidError: An argument has the wrong type.
        UnknownStateError: The source lacks an operator or a state.
        StateSchemaMismatchError: Two operators, or two states of an operator, would have the same name.
        LocationError: The target cannot be a savepoint's, or is in another store.
        SavepointExistsError: The target has a savepoint already.
        ObjectNotFoundError, ObjectCorruptError, CorruptValueError: A stored object or value is missing or damaged.
        KeyscaleError: As `write` raises it, for new states and operators.
    """
    check_argument("operators", operators, "a mapping of uids to changes", Mapping, type(None))
    changes = dict(operators or {})
    for uid, change in changes.items():
        check_argument(f"operators[{uid!r}]", change, "a ChangedOperator or None", ChangedOperator, type(None))
    new = items_of("new", new, "a NewOperator", NewOperator)
    point = StatePoint.of_location(source)
    base = point.manifest
    assert base is not None  # noqa: S101 - a location is a snapshot's
    _check_changes(base, changes, new)
    hashing = hashing_of(
        base.max_parallelism if max_parallelism is None else max_parallelism,
        base.hash_id if hash_id is None else hash_id,
    )
    savepoint = NewSavepoint.at(target, hashing, base=base, base_store=point.store.url)
    renamed = {uid: change.uid for uid, change in changes.items() if change is not None and change.uid is not None}
    with savepoint.written(), tempfile.TemporaryDirectory(prefix="keyscale-transform-", dir=scratch) as directory:
        reader = CheckpointReader(point.store, base, Path(directory))
        written = [
            _changed(reader, operator, change, savepoint)
            for operator in base.operators
            if (change := changes.get(operator.uid, ChangedOperator())) is not None
        ]
        written += [write_new(savepoint, each, each_parallelism(base, hashing), Path(directory)) for each in new]
        savepoint.publish(written, base=base, renamed=renamed)
    return savepoint.location


def each_parallelism(base: Manifest, hashing: KeyHashing) -> int:
    """Returns in how many parts a new operator is written."""
    return min(max((each.parallelism for each in base.operators), default=1), hashing.max_parallelism)


def _changed(
    reader: CheckpointReader, operator: OperatorSnapshot, change: ChangedOperator, savepoint: NewSavepoint
) -> OperatorSnapshot:
    uid, base = OperatorUid(change.uid or operator.uid), reader.manifest
    is_rehashed = savepoint.hashing != KeyHashing(base.max_parallelism, base.hash_id)
    if change.keeps_files and not is_rehashed:
        return msgspec.structs.replace(savepoint.copies().operator(operator), uid=uid)
    stored = reader.schema(operator)
    schema = _changed_schema(operator, stored, change)
    names = {**{each.name: None for each in change.new}, **change.states}

    def entries() -> Iterator[tuple[str, StoredEntries]]:
        for family, some in _stored_entries(reader, operator):
            if (name := names.get(family, family)) is None:
                continue
            if is_rehashed:
                assert stored is not None  # noqa: S101 - entries have a schema
                some = rehashed(some, stored, family, savepoint.hashing)  # noqa: PLW2901
            yield name, some
        if schema is not None:
            yield from stored_rows(change.new, schema, savepoint.hashing)

    parallelism = min(operator.parallelism, savepoint.hashing.max_parallelism)
    files = [subtask.operator_state_file for subtask in operator.subtasks]
    snapshots = [OperatorStateSnapshot() if each is None else read_operator_state(reader.store, each) for each in files]
    written = write_operator(
        savepoint,
        uid,
        schema,
        entries(),
        parallelism=parallelism,
        scratch=reader.scratch,
        operator_state=redistribute(snapshots, parallelism, claimed=False),
    )
    return msgspec.structs.replace(written, declaration=OperatorDeclaration(operator.declaration.key_schema, schema))


def _stored_entries(reader: CheckpointReader, operator: OperatorSnapshot) -> Iterator[tuple[str, StoredEntries]]:
    for subtask in reader.subtasks(operator):
        for family in subtask.engine.families():
            entries = subtask.engine.scan(family, b"", None)
            while some := list(islice(entries, _ENTRIES_AT_A_TIME)):
                yield family, StoredEntries.of(some)


def _changed_schema(
    operator: OperatorSnapshot, stored: KeyedSchema | None, change: ChangedOperator
) -> KeyedSchema | None:
    """Returns the schema of a changed operator.

    Raises:
        UnknownStateError: The operator lacks a state.
        StateSchemaMismatchError: Two states would have the same name.
    """
    schema = stored or operator.declaration.schema
    if schema is None:
        if change.keeps_files:
            return None
        raise UnknownStateError(f"operator {operator.uid!r} has no keyed state")
    states = {each.name: each for each in schema.states}
    timers = {each.name: each for each in schema.timers or ()}
    unknown = sorted({*change.states} - {*states, *timers})
    if unknown:
        known = ", ".join([*states, *timers]) or "none"
        raise UnknownStateError(f"operator {operator.uid!r} has no keyed state {unknown[0]!r}; it has: {known}")
    replaced = {each.name for each in change.new}
    kept = {
        name: new
        for name in [*states, *timers]
        if (new := change.states.get(name, name)) is not None and (name in change.states or name not in replaced)
    }
    targets = [*kept.values(), *replaced]
    twice = sorted({name for name in targets if targets.count(name) > 1})
    if twice:
        raise StateSchemaMismatchError(f"operator {operator.uid!r} would have two states {twice[0]!r}")
    for name in kept.values():
        check_name(name)
    empty = msgspec.structs.replace(schema, states=(), timers=() if timers else msgspec.UNSET)
    for name, new in kept.items():
        if name in states:
            empty = empty.with_state(msgspec.structs.replace(states[name], name=new))
        else:
            empty = empty.with_timers(msgspec.structs.replace(timers[name], name=new))
    return with_states(empty, change.new)


def _check_changes(base: Manifest, changes: Mapping[str, ChangedOperator | None], new: Sequence[NewOperator]) -> None:
    check_operators(new)
    known = [each.uid for each in base.operators]
    unknown = sorted({*changes} - {*known})
    if unknown:
        raise UnknownStateError(f"operator {unknown[0]!r} is unknown; the operators are: {', '.join(known) or 'none'}")
    uids = [each.uid for each in new]
    for uid in known:
        change = changes.get(uid, ChangedOperator())
        if change is not None:
            uids.append(change.uid or uid)
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        raise StateSchemaMismatchError(f"two operators would have the uid {twice[0]!r}")
