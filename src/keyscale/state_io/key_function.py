"""Runs a function over the keys of an operator in a snapshot."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

import msgspec

from keyscale.state.doors.commits import OperatorDeclaration, event_time_ms
from keyscale.state.doors.keyed import BatchClock, KeyedStateAccess, KeyedStateBackend, TimerService
from keyscale.state.doors.reading import CheckpointReader, StatePoint, UnknownStateError, stored_keys
from keyscale.state.doors.subtasks import merge_schemas
from keyscale.state.doors.writing import KeyHashing, NewSavepoint, store_changed

from .argument import ArgumentInvalidError, described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keyscale.state.doors.commits import OperatorSnapshot
    from keyscale.state.doors.reading import SubtaskState
    from keyscale.state.doors.writing import KeyedSchema

_Resource = TypeVar("_Resource")
_PENDING_MAX = 50_000


@runtime_checkable
class KeyFunction(Protocol):
    """A function over the state of each key.

    A class may also have `open(context)`, which is called before the first key of each subtask, and in which it gets
    its states. So a job's own function, with a method `process_key`, is a key function.
    """

    def process_key(self, key: Any, context: KeyContext) -> Iterable[Any] | None:
        """Processes the state of a key, which is the current key.

        Args:
            key: The key: the value of the key column, or a tuple if there are several key columns.
            context: Gives access to states and timers.

        Returns:
            Results, or None. A generator works, too.
        """
        ...


Function: TypeAlias = "KeyFunction | Callable[[Any, KeyContext], Iterable[Any] | None]"


class KeyContext(KeyedStateAccess):
    """The context of a function over keys: states and timers.

    It has the parts of a job's `RuntimeContext` that do not need a running job.

    Attributes:
        operator_uid: The operator.
        subtask_index: The subtask of the snapshot.
        parallelism: The number of subtasks of the snapshot.
        max_parallelism: The number of key groups.
        metrics: Takes the metrics that a job's function declares, and ignores them.
    """

    def __init__(
        self, state: KeyedStateBackend, operator: OperatorSnapshot, subtask: int, max_parallelism: int
    ) -> None:
        super().__init__(state)
        self.operator_uid: str = operator.uid
        self.subtask_index = subtask
        self.parallelism = operator.parallelism
        self.max_parallelism = max_parallelism
        self.metrics: Any = _Ignored()
        self._timers: TimerService | None = None
        self._resources: dict[str, Any] = {}

    def timer_service(self) -> TimerService:
        """Returns the timers of the current key, and the snapshot's times."""
        if self._timers is None:
            self._timers = TimerService(self._state)
        return self._timers

    def worker_resource(self, name: str, make: Callable[[], _Resource]) -> _Resource:
        """Returns an object that is made once per subtask."""
        if name not in self._resources:
            self._resources[name] = make()
        resource: _Resource = self._resources[name]
        return resource


@overload
def for_each_key(
    location: str, operator: str, function: Function, *, to: None = None, scratch: Path | None = None
) -> Iterator[Any]: ...
@overload
def for_each_key(location: str, operator: str, function: Function, *, to: str, scratch: Path | None = None) -> str: ...
def for_each_key(
    location: str, operator: str, function: Function, *, to: str | None = None, scratch: Path | None = None
) -> Iterator[Any] | str:
    """Runs a function over each key of an operator's state.

    The function has the states of the key, by the same descriptors as in the job, and its timers. Time stands still
    at the time of the snapshot. A key with timers alone counts as well.

    Args:
        location: The location of the checkpoint or savepoint.
        operator: The operator's uid.
        function: A function of a key and a `KeyContext`, or a `KeyFunction`.
        to: Where the changed state is written: `<store>/<job>/savepoints/<id>`, in the store of the source. None: the
            changes are dropped.
        scratch: A directory with room for a subtask's state; None: the system's.

    Returns:
        What the function yields, key by key; with `to`, the location of the new savepoint instead.

    Raises:
        ArgumentInvalidError: The function cannot be called, or returns neither results nor None.
        UnknownStateError: The source lacks the operator, or the operator has no keyed state.
        StateSchemaMismatchError: A descriptor does not fit the stored state.
        LocationError: The target cannot be a savepoint's, or is in another store.
        SavepointExistsError: The target has a savepoint already.
        ObjectNotFoundError, ObjectCorruptError, CorruptValueError: A stored object or value is missing or damaged.
        StoreUnavailableError: The object store is unavailable.
    """
    if isinstance(function, type) or not (callable(function) or isinstance(function, KeyFunction)):
        raise ArgumentInvalidError(
            f"the function is {described(function)}; give a function of a key and a context, or an object with a"
            " method `process_key`"
        )
    run = _Run(StatePoint.of_location(location), operator, function, scratch)
    return run.results() if to is None else run.written(to)


class _Run:
    """A function's run over an operator of a snapshot."""

    def __init__(self, point: StatePoint, uid: str, function: Function, scratch: Path | None) -> None:
        assert point.manifest is not None  # noqa: S101 - the point is a snapshot's
        self._store, self._base = point.store, point.manifest
        self._function = function
        self._scratch = scratch
        reader = self._reader(Path())  # reads only the manifest
        self._operator = reader.operator(uid)
        schema = reader.schema(self._operator)
        if schema is None:
            raise UnknownStateError(f"operator {uid!r} has no keyed state")
        self._schema: KeyedSchema = schema

    def results(self) -> Iterator[Any]:
        """Yields the function's results; drops its changes."""
        with tempfile.TemporaryDirectory(prefix="keyscale-keys-", dir=self._scratch) as directory:
            for subtask in self._reader(Path(directory)).subtasks(self._operator):
                backend = self._backend(subtask)
                for result in self._walk(subtask, backend, backend.discard):
                    yield from result or ()

    def written(self, target: str) -> str:
        """Writes the changed state to a new savepoint; returns its location."""
        base = self._base
        hashing = KeyHashing(base.max_parallelism, base.hash_id)
        savepoint = NewSavepoint.at(target, hashing, base=base, base_store=self._store.url)
        with savepoint.written():
            self._write(savepoint)
        return savepoint.location

    def _write(self, savepoint: NewSavepoint) -> None:
        base, operator = self._base, self._operator
        stored, schemas = [], []
        with tempfile.TemporaryDirectory(prefix="keyscale-keys-", dir=self._scratch) as directory:
            scratch = Path(directory)
            for subtask in self._reader(scratch).subtasks(operator):
                backend = self._backend(subtask)
                settle = partial(_apply, backend, subtask)
                for result in self._walk(subtask, backend, settle):
                    deque(result or (), maxlen=0)  # a generator runs only when it is read
                schema = backend.schema
                stored.append(
                    store_changed(
                        savepoint, operator.uid, subtask.snapshot, subtask.shards, schema=schema, scratch=scratch
                    )
                )
                schemas.append(schema)
        declaration = OperatorDeclaration(operator.declaration.key_schema, merge_schemas(schemas))
        changed = msgspec.structs.replace(operator, subtasks=tuple(stored), declaration=declaration)
        copies = savepoint.copies()
        savepoint.publish(
            [changed if each.uid == operator.uid else copies.operator(each) for each in base.operators], base=base
        )

    def _reader(self, scratch: Path) -> CheckpointReader:
        return CheckpointReader(self._store, self._base, scratch)

    def _backend(self, subtask: SubtaskState) -> KeyedStateBackend:
        clock = BatchClock(self._base.created_at_ms, event_time_ms(self._base.time, self._operator.uid))
        return KeyedStateBackend(
            subtask.engine,
            self._schema.key_schema(),
            clock,
            schema=self._schema,
            key_group_range=subtask.snapshot.key_groups,
        )

    def _walk(
        self, subtask: SubtaskState, backend: KeyedStateBackend, settle: Callable[[], None]
    ) -> Iterator[Iterable[Any] | None]:
        """Yields the results of each key.

        `settle` applies or drops the changes so far.
        """
        function, owned = self._function, subtask.snapshot.key_groups
        context = KeyContext(backend, self._operator, subtask.snapshot.subtask, self._base.max_parallelism)
        if (opening := getattr(function, "open", None)) is not None:
            opening(context)
        process = function.process_key if isinstance(function, KeyFunction) else function
        for group in range(owned.start, owned.end + 1):
            for key in stored_keys(subtask.engine, self._schema, group):
                backend.set_current_key(group, key)
                yield _checked(process(key[0] if len(key) == 1 else key, context))
                if backend.pending_count > _PENDING_MAX:
                    settle()
            settle()


def _checked(results: Any) -> Iterable[Any] | None:
    if results is None or (isinstance(results, Iterable) and not isinstance(results, (str, bytes, dict))):
        return results
    raise ArgumentInvalidError(
        f"the function returned {described(results)}; it yields results, or returns a list of them or None"
    )


def _apply(backend: KeyedStateBackend, subtask: SubtaskState) -> None:
    subtask.engine.write_runs(backend.drain())


class _Ignored:
    """Takes any call, and returns itself."""

    def __getattr__(self, _: str) -> _Ignored:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Ignored:
        return self
