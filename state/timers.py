"""Timers of keyed state: who wants to be called when, stored by key group and ordered by time.

Stored key: `key_group (2 bytes, big endian) | time (8 bytes, ordered) | key | namespace`, so that what is due in a key group is
its beginning, and timers go with their key group when a job is rescaled. Registering one twice stores it once.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from state.errors import CorruptValueError, NoCurrentKeyError
from state.key_groups import KEY_GROUP_BYTES
from state.pending import Pending
from state.stored_key import check_key_size

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from state.engine import Engine
    from state.handle import KeyContext
    from state.serializers import KeyCodec

_TIME_BYTES = 8
_KEY_AT = KEY_GROUP_BYTES + _TIME_BYTES
_SIGN = 1 << 63
_VALUE = b"\1"  # the version of this form; a timer is all in its key


class Timer(NamedTuple):
    """A timer that is due. `timestamp_ms` is the time that it was registered for."""

    timestamp_ms: int
    key_group: int
    key: tuple[Any, ...]
    namespace: Any


class TimerQueue:
    """The timers of one time domain of a subtask. Made by `KeyedStateBackend.timers`.

    As all keyed state it is kept pending until the backend is drained.
    """

    def __init__(self, name: str, engine: Engine, context: KeyContext, namespace: KeyCodec | None) -> None:
        self.pending = Pending(name)
        self.namespace = namespace
        self._engine = engine
        self._context = context
        self._next_ms: int | None = None
        self._firing: list[bytes] | None = None  # a heap: what may be due in the key group at hand

    @property
    def next_ms(self) -> int | None:
        """The time of the earliest timer, as the last complete `due` left it and `register` has changed it since.

        It may be that of a timer that was deleted meanwhile: to be woken in vain does no harm.
        """
        return self._next_ms

    def register(self, timestamp_ms: int, namespace: Any = None) -> None:
        """Have the current key called at a time, once, however often it is registered.

        Raises:
            NoCurrentKeyError: There is no current key.
            KeyTooLargeError: The key is too long.
        """
        key = self._stored_key(timestamp_ms, namespace)
        check_key_size(key)
        self.pending.entries[key] = _VALUE
        if self._firing is not None:
            heapq.heappush(self._firing, key)
        elif self._next_ms is None or timestamp_ms < self._next_ms:
            self._next_ms = timestamp_ms

    def delete(self, timestamp_ms: int, namespace: Any = None) -> None:
        """Forget the current key's timer of this time, if it is registered."""
        self.pending.entries[self._stored_key(timestamp_ms, namespace)] = None

    def due(self, until_ms: int) -> Iterator[Timer]:
        """Take the timers up to a time, key group by key group and in order of time within one.

        Each is removed before it is given. One that is registered meanwhile, for the key of the timer at hand, is given too if
        it is due.
        """
        earliest: int | None = None
        by_group: dict[bytes, list[bytes]] = {}
        for key, value in self.pending.entries.items():
            if value is not None:
                by_group.setdefault(key[:KEY_GROUP_BYTES], []).append(key)
        for group in sorted({*by_group, *self._stored_groups()}):
            later = yield from self._due_in(group, by_group.get(group, []), until_ms)
            if later is not None and (earliest is None or later < earliest):
                earliest = later
        self._next_ms = earliest

    def _due_in(self, group: bytes, pending: list[bytes], until_ms: int) -> Generator[Timer, None, int | None]:
        """The due timers of a key group; returns the time of its first one that is not."""
        heapq.heapify(pending)
        self._firing = pending
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
                    if entries.get(key) is None:  # fired already, or deleted
                        continue
                timestamp_ms = _time_of(key)
                if timestamp_ms > until_ms:
                    return timestamp_ms
                entries[key] = None
                yield self._timer(key, timestamp_ms)
        finally:
            self._firing = None
        return None

    def _stored_groups(self) -> Iterator[bytes]:
        """The key groups that have stored timers: one seek each, however many timers there are."""
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
            message = f"timers {self.pending.family!r} were used with no current key"
            raise NoCurrentKeyError(message)
        scope = b"" if self.namespace is None else self.namespace.encode(namespace)
        time = (timestamp_ms + _SIGN).to_bytes(_TIME_BYTES, "big")
        return prefix[:KEY_GROUP_BYTES] + time + prefix[KEY_GROUP_BYTES:] + scope

    def _timer(self, raw: bytes, timestamp_ms: int) -> Timer:
        key, at = self._context.serializer.decode(raw, _KEY_AT)
        namespace = None
        if self.namespace is not None:
            namespace, at = self.namespace.decode(raw, at)
        if at != len(raw):
            message = "a stored timer has bytes after its last part"
            raise CorruptValueError(message)
        return Timer(timestamp_ms, int.from_bytes(raw[:KEY_GROUP_BYTES], "big"), key, namespace)


def _time_of(raw: bytes) -> int:
    return int.from_bytes(raw[KEY_GROUP_BYTES:_KEY_AT], "big") - _SIGN


def _after(group: bytes) -> bytes:
    return (int.from_bytes(group, "big") + 1).to_bytes(KEY_GROUP_BYTES, "big")
