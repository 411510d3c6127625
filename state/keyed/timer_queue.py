"""Timers of keyed state, stored by key group and ordered by time.

Stored key: `key_group (2 bytes, big endian) | time (8 bytes, ordered) | key | namespace`. So the due timers of a key
group come first, and timers move with their key group when a job is rescaled. A timer that is registered twice is
stored once.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import CorruptValueError, NoCurrentKeyError, SerializationError
from ..keys.key_groups import KEY_GROUP_BYTES
from ..keys.stored_key import check_key_size
from ..serializers.conversions import converter
from ..serializers.key_columns import EncodedColumn, join_columns
from .pending import Pending

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import numpy.typing as npt

    from ..engine.engine import Engine
    from ..serializers.key_codecs import KeyCodec
    from ..serializers.key_serializer import KeySerializer
    from .batch_memory import BatchMemory
    from .keyed_state import CurrentKey

_TIME_BYTES = 8
_KEY_AT = KEY_GROUP_BYTES + _TIME_BYTES
_SIGN = 1 << 63
_UNKNOWN_MS = -_SIGN  # earlier than any timer: the key group must be read
_convert = converter(pa.int64())
_VALUE = b"\1"  # the version of the form; everything else is in the key


class Timer(NamedTuple):
    """A due timer; `timestamp_ms` is its registered time."""

    timestamp_ms: int
    key_group: int
    key: tuple[Any, ...]
    namespace: Any


class TimerQueue:
    """The timers of one time domain of a subtask.

    `KeyedStateBackend.timers` creates it. Like all keyed state, changes are pending until the backend is drained.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        context: CurrentKey,
        namespace: KeyCodec | None,
        memory: BatchMemory | None = None,
    ) -> None:
        self.pending = Pending(name, memory)
        self.namespace = namespace
        self._engine = engine
        self._context = context
        # The earliest timer of each key group with timers, so that only key groups with due timers are read; None until
        # `due` has read all key groups.
        self._earliest: dict[bytes, int] | None = None
        self._next_ms: int | None = None
        self._firing: list[bytes] | None = None  # a heap: pending timers of the current key group that may be due

    @property
    def next_ms(self) -> int | None:
        """The time of the earliest timer.

        The last complete `due` finds it and `register` updates it. It may belong to a timer that has been deleted
        since: an unnecessary wake-up does no harm.
        """
        return self._next_ms

    @property
    def is_firing(self) -> bool:
        """Whether `due` has just yielded a timer, which keeps changes pending."""
        return self._firing is not None

    def register(self, timestamp_ms: int, namespace: Any = None) -> None:
        """Registers a call of the current key at a time, once.

        Raises:
            NoCurrentKeyError: No key is current.
            KeyTooLargeError: The key is too long.
            SerializationError: The time is not a whole number of 64 bits.
        """
        timestamp_ms = _whole(timestamp_ms)
        key = self._stored_key(timestamp_ms, namespace)
        check_key_size(key)
        self.pending.entries[key] = _VALUE
        if self._firing is not None:
            heapq.heappush(self._firing, key)
            return
        if self._next_ms is None or timestamp_ms < self._next_ms:
            self._next_ms = timestamp_ms
        if self._earliest is not None:
            group = key[:KEY_GROUP_BYTES]
            self._earliest[group] = min(timestamp_ms, self._earliest.get(group, timestamp_ms))

    def delete(self, timestamp_ms: int, namespace: Any = None) -> None:
        """Deletes the current key's timer of this time, if registered."""
        timestamp_ms = _whole(timestamp_ms)
        key = self._stored_key(timestamp_ms, namespace)
        self.pending.entries[key] = None
        if self._earliest is not None and self._earliest.get(key[:KEY_GROUP_BYTES]) == timestamp_ms:
            self._earliest[key[:KEY_GROUP_BYTES]] = _UNKNOWN_MS

    def due(self, until_ms: int, *, registered_meanwhile: bool = True) -> Iterator[Timer]:
        """Removes and yields the timers up to a time.

        The order is by key group, then by time. Each timer is removed before it is yielded.

        Args:
            until_ms: The time.
            registered_meanwhile: Whether to yield due timers that are registered meanwhile for the current timer's key.
        """
        if self._earliest is not None and (not self._earliest or until_ms < min(self._earliest.values())):
            return
        by_group: dict[bytes, list[bytes]] = {}
        for key, value in self.pending.entries.items():
            if value is not None:
                by_group.setdefault(key[:KEY_GROUP_BYTES], []).append(key)
        earliest, self._earliest = self._earliest, None  # unknown if the caller stops before the end
        if earliest is None:
            earliest = dict.fromkeys({*by_group, *self._stored_groups()}, _UNKNOWN_MS)
        for group in sorted(group for group, first_ms in earliest.items() if first_ms <= until_ms):
            later_ms = yield from self._due_in(group, by_group.get(group, []), until_ms, registered_meanwhile)
            if later_ms is None:
                del earliest[group]
            else:
                earliest[group] = later_ms
        self._earliest = earliest
        self._next_ms = min(earliest.values(), default=None)

    def discard(self) -> None:
        """Drops all changes since the last drain."""
        if len(self.pending):
            self._earliest = None  # timers that fired since then are registered again
        self.pending.discard()

    def _due_in(
        self, group: bytes, pending: list[bytes], until_ms: int, registered_meanwhile: bool
    ) -> Generator[Timer, None, int | None]:
        """Yields a key group's due timers; returns its next timer's time."""
        heapq.heapify(pending)
        later: list[bytes] = []
        self._firing = pending if registered_meanwhile else later
        entries = self.pending.entries
        stored = (key for key, _ in self._engine.scan(self.pending.family, group, _after(group)))
        upcoming = next(stored, None)
        try:
            while upcoming is not None or pending:
                if upcoming is not None and (not pending or upcoming <= pending[0]):
                    key, upcoming = upcoming, next(stored, None)
                    if entries.get(key, _VALUE) is None:
                        continue
                else:
                    key = heapq.heappop(pending)
                    if entries.get(key) is None:  # already fired, or deleted
                        continue
                timestamp_ms = _time_of(key)
                if timestamp_ms > until_ms:
                    return timestamp_ms
                entries[key] = None
                yield parse_stored_timer(key, self._context.serializer, self.namespace)
        finally:
            self._firing = None
        return min((_time_of(key) for key in later if entries.get(key) is not None), default=None)

    def _stored_groups(self) -> Iterator[bytes]:
        """Yields the key groups with stored timers, with one seek each."""
        start = b""
        while True:
            first = next(self._engine.scan(self.pending.family, start, None, 1), None)
            if first is None:
                return
            group = first[0][:KEY_GROUP_BYTES]
            yield group
            start = _after(group)

    def _stored_key(self, timestamp_ms: int, namespace: Any) -> bytes:
        prefix = self._context.prefix
        if prefix is None:
            raise NoCurrentKeyError(f"timers {self.pending.family!r} were used without a current key")
        scope = b"" if self.namespace is None else self.namespace.encode(namespace)
        time = (timestamp_ms + _SIGN).to_bytes(_TIME_BYTES, "big")
        return prefix[:KEY_GROUP_BYTES] + time + prefix[KEY_GROUP_BYTES:] + scope


def key_position(*, is_timer: bool) -> int:
    """Returns the position of the key in a stored key."""
    return _KEY_AT if is_timer else KEY_GROUP_BYTES


def parse_stored_timer(raw: bytes, keys: KeySerializer, namespace: KeyCodec | None) -> Timer:
    """Returns the timer in a stored key.

    Raises:
        CorruptValueError: The bytes are not a timer with such a key and namespace.
    """
    key, at = keys.decode(raw, _KEY_AT)
    scope = None
    if namespace is not None:
        scope, at = namespace.decode(raw, at)
    if at != len(raw):
        raise CorruptValueError("a stored timer has bytes after its last part")
    return Timer(_time_of(raw), int.from_bytes(raw[:KEY_GROUP_BYTES], "big"), key, scope)


def stored_timers(
    key_groups: npt.NDArray[np.integer[Any]],
    times_ms: npt.NDArray[np.int64],
    keys: EncodedColumn,
    namespaces: EncodedColumn | None,
) -> tuple[EncodedColumn, EncodedColumn]:
    """Returns the stored keys and values of timers, a row each."""
    groups = np.ascontiguousarray(key_groups, ">u2").view(np.uint8).reshape(-1, KEY_GROUP_BYTES)
    ordered = np.ascontiguousarray(times_ms, np.int64).view(np.uint64) ^ np.uint64(_SIGN)
    times = ordered.astype(">u8").view(np.uint8).reshape(-1, _TIME_BYTES)
    scope = [] if namespaces is None else [namespaces]
    stored = join_columns([EncodedColumn.fixed(groups), EncodedColumn.fixed(times), keys, *scope])
    return stored, EncodedColumn.fixed(np.tile(np.frombuffer(_VALUE, np.uint8), (len(groups), 1)))


def _whole(timestamp_ms: Any) -> int:
    """Returns a time as a whole number of 64 bits."""
    if timestamp_ms is None:
        raise SerializationError("a timer was given None as its time")
    whole: int = _convert(timestamp_ms)
    return whole


def _time_of(raw: bytes) -> int:
    return int.from_bytes(raw[KEY_GROUP_BYTES:_KEY_AT], "big") - _SIGN


def _after(group: bytes) -> bytes:
    return (int.from_bytes(group, "big") + 1).to_bytes(KEY_GROUP_BYTES, "big")
