"""The result of a replay, for people and as JSON."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keyscale.jobs.sinks.sink import ReadableSink
from keyscale.state_io.row_files import plain_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from keyscale.identifiers import OperatorUid
    from keyscale.jobs.graph.topology import Topology
    from keyscale.state.doors.reading import RecordedBatch

    from .state_comparison import StateDifference


@dataclass(frozen=True, slots=True)
class SinkComparison:
    """The rows of a sink, beside the published rows.

    Attributes:
        sink: The sink's uid.
        rows: The replayed rows.
        missing: Published rows that the replay lacks; None: the published rows cannot be read.
        additional: Replayed rows that were not published.
    """

    sink: str
    rows: list[Any]
    missing: list[Any] | None = None
    additional: list[Any] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether the rows are known to differ."""
        return bool(self.missing or self.additional)


def compare_sinks(
    topology: Topology, batch: RecordedBatch, tables: Mapping[OperatorUid, pa.Table], *, is_whole: bool
) -> list[SinkComparison]:
    """Compares the rows of each sink with its published rows.

    Some sinks cannot read their published rows.

    Args:
        topology: The program.
        batch: The batch.
        tables: The replayed rows.
        is_whole: Whether all keys were replayed; if not, nothing is compared.
    """
    found = []
    for node in topology.sinks:
        table = tables[node.uid]
        rows = _plain_rows(table)
        token = None if batch.committed is None or not is_whole else batch.committed.sinks.get(node.uid)
        if token is None or not isinstance(node.sink, ReadableSink):
            found.append(SinkComparison(node.uid, rows))
            continue
        frame = node.sink.published(token, table.schema)
        if frame is None:
            found.append(SinkComparison(node.uid, rows))
            continue
        published = _plain_rows(frame.toArrow())
        found.append(SinkComparison(node.uid, rows, _without(published, rows), _without(rows, published)))
    return found


@dataclass(frozen=True, slots=True)
class Report:
    """What a replay has found.

    Attributes:
        batch: The batch.
        program: The program's file.
        records: The number of records that the batch has read.
        changes: The number of changed entries of each operator.
        output_records: The number of records that the operators before the sinks have emitted.
        differences: The differences of the state.
        sinks: The rows of the sinks.
        key: The only key that was replayed; None: all keys.
        key_records: The number of its records.
    """

    batch: RecordedBatch
    program: str
    records: int
    changes: Mapping[OperatorUid, int]
    output_records: int
    differences: Sequence[StateDifference]
    sinks: Sequence[SinkComparison]
    key: str | None = None
    key_records: int | None = None

    @property
    def differs(self) -> bool:
        """Whether the replay has given something else than the batch."""
        return bool(self.differences) or self._counts_differ or any(sink.differs for sink in self.sinks)

    @property
    def _counts_differ(self) -> bool:
        commit = self.batch.committed
        return commit is not None and self.key is None and commit.output_records != self.output_records

    def as_json(self) -> dict[str, Any]:
        """Returns the report as JSON can hold it."""
        commit = self.batch.committed
        return {
            **batch_facts(self.batch),
            "program": self.program,
            "key": self.key,
            "key_records": self.key_records,
            "records": self.records,
            "changes": dict(self.changes),
            "output_records": self.output_records,
            "committed_output_records": None if commit is None else commit.output_records,
            "differences": [each._asdict() for each in self.differences],
            "sinks": [
                {"sink": sink.sink, "rows": sink.rows, "missing": sink.missing, "additional": sink.additional}
                for sink in self.sinks
            ],
            "differs": None if commit is None else self.differs,
        }

    def lines(self, shown_max: int) -> Iterator[str]:
        """Yields the report as text, with some rows of each kind."""
        of_key = "" if self.key is None else f", and ran only key {self.key}"
        yield f"read {_count(self.records, 'record')}{of_key}; nothing was written"
        for uid, changes in self.changes.items():
            yield f"  operator {uid}: {_count(changes, 'changed entry', 'changed entries')}{self._verdict(uid)}"
            yield from _cut([_difference_line(each) for each in self.differences if each.operator == uid], shown_max)
        for sink in self.sinks:
            yield f"  sink {sink.sink}: {_count(len(sink.rows), 'row')}{self._verdict_of(sink)}"
            if sink.differs:
                lines = [f"    only committed: {_text(row)}" for row in sink.missing or []]
                lines += [f"    only replayed:  {_text(row)}" for row in sink.additional]
                yield from _cut(lines, shown_max)
            else:
                yield from _cut([f"    {_text(row)}" for row in sink.rows], shown_max)
        if self.key_records == 0:
            yield f"no record of key {self.key} is in the batch"
            if not self.differs and not any(self.changes.values()):  # a timer of the key may have run
                return
        if self.batch.committed is None:
            yield "the batch is not committed, so nothing is compared; it has not failed here"
        elif self.differs:
            if self._counts_differ:
                counts = f"{self.output_records} here, {self.batch.committed.output_records} when it was committed"
                yield f"records emitted to sinks: {counts}"
            yield "the replay differs from what the batch has committed"
        else:
            yield "the replay gives what the batch has committed"

    def _verdict(self, uid: str) -> str:
        if self.batch.committed is None:
            return ""
        differs = any(each.operator == uid for each in self.differences)
        return "; these differ from the committed state:" if differs else ", as committed"

    def _verdict_of(self, sink: SinkComparison) -> str:
        if self.batch.committed is None or self.key is not None:
            return ""
        if sink.missing is None:
            return " (the published rows cannot be read; the number of emitted records is compared)"
        return ", which differ:" if sink.differs else ", as published"


def batch_facts(batch: RecordedBatch) -> dict[str, Any]:
    """Returns what identifies a batch, as JSON can hold it."""
    commit = batch.committed
    return {
        "batch_id": batch.batch_id,
        "attempt": batch.attempt,
        "parallelism": batch.parallelism,
        "committed_at_ms": None if commit is None else commit.committed_at_ms,
        "is_of_time_alone": batch.before.resume.planned is None,
    }


def heading(batch: RecordedBatch) -> str:
    """Returns a line about the batch."""
    what = "timers alone" if batch.before.resume.planned is None else "records"
    if batch.committed is None:
        fate = f"not committed by attempt {batch.attempt}"
    else:
        at = dt.datetime.fromtimestamp(batch.committed.committed_at_ms / 1000, dt.UTC)
        fate = f"committed by attempt {batch.attempt} at {at:%Y-%m-%d %H:%M:%S} UTC"
    return f"batch {batch.batch_id} ({what}), {fate}, in {batch.parallelism} subtasks"


def _difference_line(each: StateDifference) -> str:
    entry = "" if each.entry is None else f" {_text(each.entry)}"
    return f"    {each.state}{entry}: committed {_value(each.committed)}, replayed {_value(each.replayed)}"


def _value(value: Any) -> str:
    return "nothing" if value is None else _text(value)


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain_rows(table: pa.Table) -> list[Any]:
    return [{name: plain_value(value) for name, value in row.items()} for row in table.to_pylist()]


def _without(rows: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Returns the rows that other rows lack, with repetitions."""
    left = Counter(map(_text, others))
    found = []
    for row in rows:
        text = _text(row)
        if left[text]:
            left[text] -= 1
        else:
            found.append(row)
    return found


def _cut(lines: Sequence[str], shown_max: int) -> Iterator[str]:
    yield from lines[:shown_max]
    if len(lines) > shown_max:
        yield f"    {len(lines) - shown_max:,} more; --rows shows more"
