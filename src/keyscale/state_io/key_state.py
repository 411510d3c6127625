"""Reads the state of one key after a batch, and its changes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.errors import KeyscaleError
from keyscale.identifiers import BatchId, JobId, OperatorUid
from keyscale.state.doors.commits import BatchCommitted, CommitLog
from keyscale.state.doors.objects import open_store
from keyscale.state.doors.paths import Layout
from keyscale.state.doors.reading import BatchNotStoredError, StatePoint, UnknownStateError, key_changes, source_ends

from .key_text import KeyTextError, key_of_text
from .row_files import plain_value
from .state_reader import KeyedStateTable, StateReader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from keyscale.state.doors.objects import ObjectStore

READ_BYTES_MAX = 64 << 20
WAIT_S_MAX = 30.0
_POLL_S = 0.5
_SHARDS_OPEN = 16
_OPEN_BYTES_MAX = 4 << 30


class KeyReadTooLargeError(KeyscaleError):
    """The files with a key take more bytes than a read fetches."""

    code = "STATE_KEY_READ_TOO_LARGE"
    domain = "user"
    advice = (
        "Take a savepoint. `./keyscale state sql LOCATION` reads it without this limit, with your own access to the"
        " object store. A higher parallelism makes shards smaller."
    )


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """The key that is asked for.

    Attributes:
        store_url: The job's object store.
        job_id: The job.
        operator: The operator's uid.
        key: The key as text, as `key_of_text` reads it.
        state: The state's name; None: all states and timers of the operator.
        batch_id: The state after this committed batch; None: after the latest.
        at_ms: The state after the last batch committed by this time, in milliseconds since the epoch; None: no time.
        manifest_path: The path of a manifest of the job, for the state in its snapshot; None: the job's history.
        after: A batch, or a record as `topic/partition/offset`; the read waits until the job has committed it. None: no
            wait.
        wait_s_max: The longest wait for it.
        fetched_bytes_max: The bytes of files that the read may fetch.
        rows_max: The rows that the answer may have.
    """

    store_url: str
    job_id: str
    operator: str
    key: str
    state: str | None = None
    batch_id: int | None = None
    at_ms: int | None = None
    manifest_path: str | None = None
    after: str | None = None
    wait_s_max: float = WAIT_S_MAX
    fetched_bytes_max: int = 4 << 30
    rows_max: int = 1000


def read_key(request: KeyRequest, scratch: Path | None = None) -> dict[str, Any]:
    """Returns the rows of a key, with their batch and source positions.

    Raises:
        UnknownStateError: There is no such operator or state.
        KeyTextError: The key does not fit the operator.
        BatchNotStoredError: The job has not committed the batch, or its state was cleaned up.
        KeyReadTooLargeError: The files of the key's shard are too large.
        ForeignStateError: The state has objects of another job.
        KeyscaleError: The store does not answer, or its content cannot be read.
    """
    with StateReader(_point(request), scratch=scratch) as reader:
        return _rows(reader, request)


class LatestKeys:
    """Reads keys of one job after its latest batch, again and again.

    The shards with the keys stay open, and follow the job's batches.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self._scratch = scratch
        self._reader: StateReader | None = None

    def read(self, request: KeyRequest) -> dict[str, Any]:
        """Returns the rows of a key, as `read_key` does.

        All requests name the same job.
        """
        point = _point(request)
        try:
            # Within an attempt, a later state follows from an earlier one by the changelogs in between.
            if self._reader is not None and self._reader.point.resume.attempt == point.resume.attempt:
                self._reader.advance(point)
            else:
                self.close()
                self._reader = StateReader(
                    point, scratch=self._scratch, shards_open=_SHARDS_OPEN, open_bytes_max=_OPEN_BYTES_MAX
                )
            return _rows(self._reader, request)
        except (KeyTextError, UnknownStateError):
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Removes all files; closing twice is harmless."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _rows(reader: StateReader, request: KeyRequest) -> dict[str, Any]:
    tables = _tables(reader, request)
    key = key_of_text(request.key, tables[0].stored.key_schema)
    group = tables[0].key_group_of(key)
    _check_size(reader.point, request, group)
    rows: dict[str, list[Any]] = {}
    is_truncated = False
    left = request.rows_max
    for table in tables:
        rows[table.name] = found = []
        for batch in table.batches(key=key):
            is_truncated = is_truncated or batch.num_rows > left
            found += [_without_key(row) for row in batch.slice(0, left).to_pylist()]
            left -= min(left, batch.num_rows)
    return {
        "batch_id": reader.point.batch_id,
        "source_positions": source_ends(reader.point),
        "key": _named(key, tables[0]),
        "key_group": group,
        "states": [{"state": table.name, "kind": table.kind, "rows": rows[table.name]} for table in tables],
        "is_truncated": is_truncated,
    }


def read_history(request: KeyRequest, scratch: Path | None = None) -> dict[str, Any]:
    """Returns the changes of a key in a job's stored batches.

    Raises as `read_key`. The newest changes come last; with more than `rows_max`, the oldest ones are left out.
    """
    point = _point(request)
    with StateReader(point, scratch=scratch) as reader:
        tables = _tables(reader, request)
        key = key_of_text(request.key, tables[0].stored.key_schema)
        group = tables[0].key_group_of(key)
        by_name = {table.name: table for table in tables}
        ranges = {table.name: table.stored.range_of(group, key) for table in tables}
        uid = OperatorUid(request.operator)
        changes: list[dict[str, Any]] = []
        found = 0
        job_id = JobId(request.job_id)
        for change in key_changes(point.store, job_id, uid, key_group=group, ranges=ranges, scratch=reader.scratch):
            table = by_name[change.family]
            if not table.stored.is_of(change.key, key):
                continue
            found += 1
            place = {"batch_id": change.batch_id, "attempt": change.attempt, "committed_at_ms": change.committed_at_ms}
            changes.append({**place, "state": table.name, **_changed(table, change.key, change.value)})
            del changes[: -request.rows_max]
        return {
            "key": _named(key, tables[0]),
            "key_group": group,
            "changes": changes,
            "is_truncated": found > len(changes),
        }


def _point(request: KeyRequest) -> StatePoint:
    store = open_store(request.store_url, get_bytes_max=READ_BYTES_MAX)
    job_id = JobId(request.job_id)
    latest = None if request.after is None else _waited(store, request, request.after)
    if request.manifest_path is not None:
        point = StatePoint.of_path(store, request.manifest_path)
    elif request.batch_id is None and request.at_ms is None:
        point = latest or StatePoint.of_job(store, job_id)
    else:
        point = StatePoint.of_job(store, job_id, _batch(CommitLog(store, Layout(job_id)), request))
    point.check_own(job_id)
    return point


def _batch(log: CommitLog, request: KeyRequest) -> BatchId:
    if request.batch_id is not None:
        return BatchId(request.batch_id)
    assert request.at_ms is not None  # noqa: S101 - one of them is given
    commits = [entry for _, entry in log.stored() if isinstance(entry, BatchCommitted)]
    earlier = [entry.batch_id for entry in commits if entry.committed_at_ms <= request.at_ms]
    if not earlier:
        raise BatchNotStoredError("the job has not committed a batch by that time, or the batch was cleaned up")
    return earlier[-1]


def _waited(store: ObjectStore, request: KeyRequest, after: str) -> StatePoint:
    """Waits for a batch or a record; returns the latest state."""
    until_s = time.monotonic() + request.wait_s_max
    while True:
        point = StatePoint.of_job(store, JobId(request.job_id))
        if point.batch_id >= int(after) if after.isdecimal() else _has_record(point, after):
            return point
        if time.monotonic() >= until_s:
            what = f"batch {after}" if after.isdecimal() else after
            raise BatchNotStoredError(f"the job has not committed {what} within {request.wait_s_max:g} seconds")
        time.sleep(_POLL_S)


def _has_record(point: StatePoint, record: str) -> bool:
    """Returns whether a source has read a record, given as `topic/partition/offset`."""
    topic, partition, offset = record.split("/")
    for end in (end for ends in source_ends(point).values() for end in ends):
        partitions = json.loads(end).get(topic) if end.startswith("{") else None
        if isinstance(partitions, dict) and partitions.get(partition, 0) > int(offset):
            return True
    return False


def _tables(reader: StateReader, request: KeyRequest) -> list[KeyedStateTable]:
    if request.state is not None:
        named = reader.table(request.operator, request.state)
        if not isinstance(named, KeyedStateTable):
            raise UnknownStateError(f"{request.state!r} is operator state, which has no keys")
        return [named]
    tables = [table for table in reader.tables(request.operator) if isinstance(table, KeyedStateTable)]
    if not tables:
        raise UnknownStateError(f"operator {request.operator!r} has no keyed state")
    return tables


def _check_size(point: StatePoint, request: KeyRequest, group: int) -> None:
    for shard in point.shard_ranges(request.operator):
        if group in shard and (size := point.size_bytes(request.operator, shard)) > request.fetched_bytes_max:
            raise KeyReadTooLargeError(
                f"the files with the key take {size:,} bytes, and a read may fetch {request.fetched_bytes_max:,}"
            )


def _changed(table: KeyedStateTable, key: bytes, value: bytes | None) -> dict[str, Any]:
    """Returns the change of an entry; a removal has no value."""
    if value is not None:
        (row,) = table.stored.batch([(key, value)]).to_pylist()
        return {"change": "PUT", "row": _without_key(row)}
    return {"change": "REMOVED", "row": _without_key(table.stored.identity_of(key))}


def _without_key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain_value(value) for name, value in row.items() if name not in {"key", "key_group"}}


def _named(key: tuple[Any, ...], table: KeyedStateTable) -> dict[str, Any]:
    return {name: plain_value(value) for name, value in zip(table.stored.key_schema.names, key, strict=True)}
