"""The entries of one state, with pending changes, TTL and formats applied.

All kinds of keyed state are thin layers over entries.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..errors import SerializationError
from ..keys.stored_key import check_key_size, prefix_end
from ..serializers.conversions import column_of
from .batch_clock import Clock, TimeDomain
from .batch_memory import LARGE_BYTES
from .cleanup import Sweeper
from .ttl import Ttl, UpdateType, Visibility, is_expired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from ..engine.engine import Engine
    from ..keys.stored_key import KeyBatch, StoredKeys
    from .formats import ValueFormats
    from .pending import Pending

    BatchUpdate = Callable[[pa.Array, npt.NDArray[np.intp]], pa.Array | tuple[pa.Array, Sequence[bool]]]


class _Absent:
    """The type of `ABSENT`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""A missing entry, as opposed to an entry with a null value."""

_MISSING: Final = object()


class Entries:
    """One state's entries, by stored key."""

    __slots__ = (
        "_clock",
        "_engine",
        "_fresh",
        "_fresh_at",
        "_returns_expired",
        "_time",
        "_touches",
        "family",
        "formats",
        "pending",
        "sweeper",
        "ttl",
    )

    def __init__(self, engine: Engine, pending: Pending, formats: ValueFormats, ttl: Ttl | None, clock: Clock) -> None:
        self.family = pending.family
        self.pending = pending
        self.formats = formats
        self.ttl = ttl if ttl is not None and ttl.enabled else None
        self._engine = engine
        self._clock = clock
        event = self.ttl is not None and self.ttl.time_domain is TimeDomain.EVENT
        self._time = attrgetter("event_stamp_ms" if event else "processing_time_ms")
        self._touches = self.ttl is not None and self.ttl.update_type is UpdateType.ON_READ_AND_WRITE
        self._returns_expired = (
            self.ttl is not None and self.ttl.visibility is Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        )
        self._fresh_at: int | None = None
        self._fresh = (b"", b"")
        incremental = None if self.ttl is None else self.ttl.cleanup.incremental
        self.sweeper = (
            None if incremental is None else Sweeper(incremental, engine, pending, self.expired_now, self._fresh_range)
        )

    @property
    def now_ms(self) -> int:
        """The time for stamps; 0 without a TTL."""
        at: int = 0 if self.ttl is None else self._time(self._clock)
        return at

    def get(self, key: bytes, prefix: bytes | None = None) -> Any:
        """Returns the value of an entry, or ABSENT if missing or expired.

        Args:
            key: The entry's stored key.
            prefix: The stored key of the current key and namespace, if these may have several entries.
        """
        pending = self.pending
        if pending.runs:
            pending.settle()
        if key in pending.entries:
            raw = pending.entries[key]
        elif key in pending.reads:
            raw = pending.reads[key]
        else:
            raw = pending.reads[key] = self._engine.get(self.family, key)
            if raw is not None and len(raw) > LARGE_BYTES:
                pending.memory.add_large(len(raw))
        if self.ttl is None:
            return ABSENT if raw is None else self.formats.value(raw)
        if self.sweeper is not None:
            self.sweeper.accessed()
        if raw is None:
            return ABSENT
        first, end = self._fresh_range()
        return self.formats.value(raw) if first <= raw < end else self._live(key, raw, prefix=prefix)

    def put(self, key: bytes, value: Any, prefix: bytes | None = None) -> None:
        """Sets an entry; arguments as for `get`."""
        pending = self.pending
        if self.ttl is None:
            raw = self.formats.pack(value, 0)
        else:
            raw = self.formats.pack(value, self._time(self._clock))
            if self.sweeper is not None:
                self.sweeper.accessed()
        if len(raw) > LARGE_BYTES or len(key) > LARGE_BYTES:
            check_key_size(key)
            pending.memory.add_large(len(key) + len(raw))
        if pending.runs:
            pending.settle()
        pending.entries[key] = raw
        if prefix is not None:
            pending.noted.append(prefix)
            pending.noted.append(key)

    def read_ahead(self, keys: list[bytes]) -> None:
        """Reads distinct, ascending keys from the engine for later calls of `get`."""
        pending = self.pending
        pending.settle()
        entries, reads = pending.entries, pending.reads
        unknown = [key for key in keys if key not in reads and key not in entries]
        raws = self._engine.get_many(self.family, unknown)
        reads.update(zip(unknown, raws, strict=True))
        pending.memory.add_many(len(raws), sum(map(len, filter(None, raws))))

    def has_read_most(self, keys: set[bytes]) -> bool:
        """Returns whether this batch has read most of these keys."""
        return 2 * len(keys & self.pending.reads.keys()) > len(keys)

    def remove(self, key: bytes, prefix: bytes | None = None) -> None:
        """Removes an entry; arguments as for `get`."""
        self.pending.settle()
        self.pending.entries[key] = None
        if len(key) > LARGE_BYTES:
            self.pending.memory.add_large(len(key))
        if prefix is not None:
            self.pending.noted += (prefix, key)

    def put_all_below(self, prefix: bytes, entries: Sequence[tuple[bytes, Any]]) -> None:
        """Sets several entries below `prefix`, or none if one is invalid."""
        now = self.now_ms
        packed = []
        for key, value in entries:
            check_key_size(key)
            packed.append((key, self.formats.pack(value, now)))
        if packed:
            self.pending.settle()
            self.pending.entries.update(packed)
            self.pending.memory.add_many(len(packed), sum(len(key) + len(raw) for key, raw in packed))
            self.pending.touch(prefix, [key for key, _ in packed])
            if self.sweeper is not None:
                self.sweeper.accessed(len(packed))

    def put_raw_below(self, prefix: bytes, raws: dict[bytes, bytes]) -> None:
        """Sets entries below `prefix`, given as stored values."""
        for key in raws:
            check_key_size(key)
        self.pending.settle()
        self.pending.entries.update(raws)
        self.pending.memory.add_many(len(raws), sum(map(len, raws)) + sum(map(len, raws.values())))
        self.pending.touch(prefix, raws)

    def peek(self, key: bytes) -> bytes | None:
        """Returns the stored value of a key, expired or not."""
        return self._raw(key)

    def last_key_below(self, prefix: bytes) -> bytes | None:
        """Returns the greatest stored key below a prefix, or None.

        Expired keys count, removed keys do not.
        """
        pending = self.pending
        pending.settle()
        entries = pending.entries
        there = [key for key in pending.below(prefix) if entries.get(key) is not None]
        stored = self._engine.last_key(self.family, prefix, prefix_end(prefix))
        if stored is not None and entries.get(stored, _MISSING) is None:
            keys = self.keys_below(prefix)
            return keys[-1] if keys else None
        return max([*there, *([] if stored is None else [stored])], default=None)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Any]]:
        """Returns the present entries below a prefix, by stored key.

        Later changes do not appear in the result.
        """
        stored = self._raw_below(prefix)  # here, not in a generator, so that it sees the entries of this moment
        read = ((key, self._live(key, raw, prefix=prefix)) for key, raw in stored)
        return ((key, value) for key, value in read if value is not ABSENT)

    def raws_below(self, prefix: bytes) -> list[bytes]:
        """Returns the present stored values below a prefix, in key order."""
        stored = list(self._raw_below(prefix))
        live = (raw if self.ttl is None else self._live_raw(key, raw, prefix=prefix) for key, raw in stored)
        return [raw for raw in live if raw is not None]

    def scan_keys(self, prefix: bytes) -> Iterator[bytes]:
        """Returns the stored keys of the present entries below a prefix.

        Values are read only if the TTL says which entries are present. Later changes do not appear in the result.
        """
        if self.ttl is None:
            return self._keys_below(prefix)
        stored = self._raw_below(prefix)
        return (key for key, raw in stored if self._live_raw(key, raw, prefix=prefix) is not None)

    def keys_below(self, prefix: bytes) -> list[bytes]:
        """Returns the stored keys below a prefix, including expired ones."""
        return list(self._keys_below(prefix))

    def _keys_below(self, prefix: bytes) -> Iterator[bytes]:
        pending = self.pending
        pending.settle()
        entries = pending.entries
        changed = {key: entries[key] for key in pending.below(prefix) if key in entries}
        stored = self._engine.scan_keys(self.family, prefix, prefix_end(prefix))
        if not changed:
            return stored
        return (key for key, _ in _merged(((key, b"") for key in stored), changed))

    def raw_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored values of distinct, ascending keys.

        None stands for missing and expired values. Like every read, this removes expired entries, and restarts the time
        to live if the TTL says so.
        """
        raws = self.peek_many(keys)
        if self.ttl is None:
            return raws
        first, end = self._fresh_range()
        stale = [place for place, raw in enumerate(raws) if raw is not None and not first <= raw < end]
        for place in stale:
            raw = raws[place]
            if raw is not None:
                raws[place] = self._live_raw(keys[place], raw)
        return raws

    def peek_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the stored values of distinct keys, including expired ones."""
        pending = self.pending
        pending.settle()
        entries = pending.entries
        if not entries:
            return self._engine.get_many(self.family, keys)
        unchanged = [key for key in keys if key not in entries]
        if len(unchanged) == len(keys):
            return self._engine.get_many(self.family, keys)
        read = iter(self._engine.get_many(self.family, unchanged))
        return [entries[key] if key in entries else next(read) for key in keys]

    def get_rows(self, keys: KeyBatch) -> pa.Array:
        """Returns the values of a batch's rows as a column, with nulls."""
        found = self.formats.unpack_array(self.raw_many(keys.distinct))
        self.pending.memory.column_bytes += found.nbytes
        return found.take(pa.array(keys.groups))

    def contains_rows(self, keys: KeyBatch) -> npt.NDArray[np.bool_]:
        """Returns whether each row has an unexpired entry."""
        raws = self.raw_many(keys.distinct)
        there = np.fromiter((raw is not None for raw in raws), np.bool_, len(raws))
        found: npt.NDArray[np.bool_] = there[keys.groups]
        return found

    def put_rows(self, keys: KeyBatch, values: pa.Array, *, null_removes: bool) -> None:
        """Sets the entries of a batch's rows; a key's last row counts."""
        if len(values) != len(keys):
            raise SerializationError(f"a batch has {len(keys)} keys and {len(values)} values")
        self.put_distinct_values(keys.distinct, values.take(pa.array(keys.last_rows)), null_removes=null_removes)

    def put_distinct_values(self, keys: StoredKeys, values: pa.Array, *, null_removes: bool) -> None:
        """Sets the entries of distinct keys.

        Null is stored, or with `null_removes` removes the entry.
        """
        raws: list[bytes | None] = list(self.formats.pack_array(values, self.now_ms))
        if null_removes and values.null_count:
            for place in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist():
                raws[place] = None
        size_bytes = values.nbytes
        self.pending.memory.column_bytes += size_bytes
        self.pending.add_run(keys, raws, size_bytes)

    def update_rows(self, keys: KeyBatch, update: BatchUpdate) -> pa.Array:
        """Computes new values of a batch's distinct keys from the current values.

        Null means a missing value, in both.
        """
        current = self.formats.unpack_array(self.raw_many(keys.distinct))
        self.pending.memory.column_bytes += current.nbytes
        found = update(current, keys.groups)
        values, chosen = found if isinstance(found, tuple) else (found, None)
        updated, distinct = column_of(values, self.formats.type), keys.distinct
        if len(updated) != len(distinct):
            raise SerializationError(f"a batch has {len(distinct)} distinct keys and {len(updated)} values")
        are_written = None if chosen is None else np.asarray(chosen, np.bool_)
        if are_written is not None and len(are_written) != len(distinct):
            raise SerializationError(
                f"a batch has {len(distinct)} distinct keys, and the update names {len(are_written)}"
            )
        if are_written is None or are_written.all():
            self.put_distinct_values(distinct, updated, null_removes=True)
        else:
            written = updated.filter(pa.array(are_written))
            self.put_distinct_values(distinct.where(are_written.tolist()), written, null_removes=True)
        return updated

    def insert_rows(self, keys: KeyBatch, value: Any) -> npt.NDArray[np.bool_]:
        """Sets missing entries to a value; returns True for inserting rows.

        The first row with a key inserts its entry.
        """
        distinct = keys.distinct
        raws = self.raw_many(distinct)
        raw = self.formats.pack(value, self.now_ms)
        fresh = [found is None for found in raws]
        new = distinct.where(fresh)
        self.pending.add_run(new, [raw] * len(new), 0)  # one object for all
        inserted = np.zeros(len(keys), np.bool_)
        inserted[keys.first_rows] = fresh
        return inserted

    def expired_now(self) -> Callable[[bytes], bool]:
        """Returns a check whether a stored value is expired now."""
        if self.ttl is None:
            return lambda _: False
        return self.formats.expiry_check(self.now_ms - self.ttl.duration_ms)

    def _fresh_range(self) -> tuple[bytes, bytes]:
        """Returns the range of stored values that a read leaves unchanged.

        These values are not expired and need no new stamp.
        """
        now: int = self._time(self._clock)
        if self.ttl is not None and now != self._fresh_at:
            self._fresh = self.formats.stamped_from(now if self._touches else now - self.ttl.duration_ms + 1)
            self._fresh_at = now
        return self._fresh

    def _raw_below(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns the stored entries below a prefix, with current pending changes."""
        pending = self.pending
        pending.settle()
        entries = pending.entries
        changed = {key: entries[key] for key in pending.below(prefix) if key in entries}
        stored = self._engine.scan(self.family, prefix, prefix_end(prefix))
        return _merged(stored, changed) if changed else stored

    def _raw(self, key: bytes) -> bytes | None:
        pending = self.pending
        if pending.runs:
            pending.settle()
        raw = pending.entries.get(key, _MISSING)
        if raw is _MISSING:
            raw = pending.reads.get(key, _MISSING)
            if raw is _MISSING:
                raw = pending.reads[key] = self._engine.get(self.family, key)
                if raw is not None and len(raw) > LARGE_BYTES:
                    pending.memory.add_large(len(raw))
        return raw  # type: ignore[return-value]  # object is only _MISSING's type

    def _live(self, key: bytes, raw: bytes, *, prefix: bytes | None) -> Any:
        value, stamp = self.formats.unpack(raw)
        if self.ttl is None:
            return value
        now = self.now_ms
        if stamp is not None and is_expired(stamp, self.ttl.duration_ms, now):
            changed = None
        elif stamp is None or (self._touches and stamp < now):
            # A value without a stamp was written before the state had this TTL: its time to live begins now.
            changed = self.formats.restamped(raw, now)
        else:
            return value
        self.pending.settle()
        self.pending.entries[key] = changed
        if changed is not None and len(changed) > LARGE_BYTES:
            self.pending.memory.add_large(len(changed))
        if prefix is not None:
            self.pending.noted += (prefix, key)
        return value if changed is not None or self._returns_expired else ABSENT

    def _live_raw(self, key: bytes, raw: bytes, *, prefix: bytes | None = None) -> bytes | None:
        ttl = self.ttl
        stamp = self.formats.stamp(raw)
        now = self.now_ms
        changed: bytes | None
        found: bytes | None
        if ttl is not None and stamp is not None and is_expired(stamp, ttl.duration_ms, now):
            changed, found = None, raw if self._returns_expired else None
        elif stamp is None or (self._touches and stamp < now):
            changed = found = self.formats.restamped(raw, now)
        else:
            return raw
        self.pending.entries[key] = changed
        if changed is not None and len(changed) > LARGE_BYTES:
            self.pending.memory.add_large(len(changed))
        if prefix is not None:
            self.pending.noted += (prefix, key)
        return found


def _merged(stored: Iterator[tuple[bytes, bytes]], changed: dict[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
    """Returns stored entries with changes applied, by key."""
    upcoming = iter(sorted(changed.items()))
    change = next(upcoming, None)
    for key, raw in stored:
        while change is not None and change[0] < key:
            if change[1] is not None:
                yield change[0], change[1]
            change = next(upcoming, None)
        if change is not None and change[0] == key:
            if change[1] is not None:
                yield key, change[1]
            change = next(upcoming, None)
        else:
            yield key, raw
    while change is not None:
        if change[1] is not None:
            yield change[0], change[1]
        change = next(upcoming, None)
