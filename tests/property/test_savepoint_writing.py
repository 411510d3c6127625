"""Random state is written from rows, and read back: equal, at any parallelism and max parallelism."""

from __future__ import annotations

import datetime as dt
import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.state.inspection.state_table import keyed_tables
from keyscale.state.keys.key_groups import assign_to_key_group
from keyscale.state.writing.row_encoder import KeyHashing, encoder_of, rehashed
from keyscale.state_io import EVENT_TIMERS, NewOperator, NewState, NewTimers, StateReader, write
from keyscale.state_io.verified_state import verify_state
from tests.property.histories import EXAMPLES, SCRATCH
from tests.property.state_columns import KEYS
from tests.property.state_examples import Example, examples, written

if TYPE_CHECKING:
    from collections.abc import Callable

WITHOUT_HASH = {pa.uuid(), pa.uint16(), pa.uint64()}
HASHED = {
    of_type: values
    for of_type, values in KEYS.items()
    if WITHOUT_HASH.isdisjoint([of_type, *(of_type.field(at).type for at in range(of_type.num_fields))])
}
MOMENTS = st.integers(-(2**40), 2**40).map(lambda ms: dt.datetime.fromtimestamp(ms / 1000, dt.UTC))


@st.composite
def sizes(draw: Callable[..., Any]) -> tuple[int, int]:
    """Draws a max parallelism and a parallelism."""
    max_parallelism = draw(st.sampled_from([1, 7, 16, 128]))
    return max_parallelism, draw(st.integers(1, min(4, max_parallelism)))


def group_of(example: Example, max_parallelism: int) -> Callable[[int, tuple[Any, ...]], int]:
    types = tuple(of_type for of_type, _ in example.key)
    return lambda _, key: assign_to_key_group(key, max_parallelism, types=types)


def text(rows: list[dict[str, Any]]) -> list[str]:
    """Returns rows as sorted text, without the key groups, which follow from the keys."""
    return sorted(repr({name: each for name, each in row.items() if name != "key_group"}) for row in rows)


@settings(max_examples=EXAMPLES * 3)
@given(examples(HASHED), st.booleans())
def test_rows_become_exactly_the_entries_that_they_were_read_from(example: Example, nested: bool) -> None:
    engine, backend = written(example, group_of(example, 16))
    (table,) = keyed_tables(backend.schema, nested=nested)
    encoder, other = (encoder_of(backend.schema, "s", KeyHashing(groups), now_ms=5000) for groups in (16, 5))
    encoded: dict[bytes, bytes] = {}
    moved: dict[bytes, bytes] = {}
    for batch in table.batches(engine.scan("s", b"", None)):
        again = rehashed(other.encode(batch), backend.schema, "s", KeyHashing(16))
        for found, entries in ((encoded, encoder.encode(batch)), (moved, again)):
            found.update(zip(entries.keys.to_list(), entries.values.to_list(), strict=True))
    assert encoded == dict(engine.scan("s", b"", None))
    assert moved == encoded, "entries in other key groups"


@settings(max_examples=EXAMPLES)
@given(
    examples(HASHED),
    sizes(),
    sizes(),
    st.lists(MOMENTS, min_size=1),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
)
def test_a_written_savepoint_has_the_rows_that_were_given_at_any_parallelism(
    example: Example, first: tuple[int, int], second: tuple[int, int], moments: list[Any], times: list[int]
) -> None:
    engine, backend = written(example, group_of(example, 16))
    (table,) = keyed_tables(backend.schema)
    whole = pa.Table.from_batches(table.batches(engine.scan("s", b"", None)), table.schema)
    given_rows = whole.drop_columns("key_group")
    if example.ttl is not None:
        started = [moments[at % len(moments)] for at in range(len(given_rows))]
        place = given_rows.schema.get_field_index("ttl_started_at")
        given_rows = given_rows.set_column(place, "ttl_started_at", pa.array(started, pa.timestamp("ms", "UTC")))
    keys = given_rows.column("key").to_pylist()
    alarms = {(repr(key), times[at % len(times)]): key for at, key in enumerate(keys)}
    timers = pa.table(
        {
            "key": pa.array(alarms.values(), given_rows.schema.field("key").type),
            "time_ms": pa.array([at_ms for _, at_ms in alarms], pa.int64()),
        }
    )

    with tempfile.TemporaryDirectory(dir=SCRATCH) as directory:
        rows: Any = (given_rows, timers)
        for name, (max_parallelism, parallelism) in (("first", first), ("second", second)):
            states = [NewState(example.descriptor, rows[0]), NewTimers(EVENT_TIMERS, rows[1])]
            location = write(
                f"file://{directory}/store/history/savepoints/{name}",
                [NewOperator("counts", example.key_schema, states)],
                max_parallelism=max_parallelism,
                parallelism=parallelism,
            )
            verified = verify_state(location)
            assert verified.problems == []
            assert verified.entries == len(given_rows) + len(timers)
            with StateReader.open(location) as reader:
                rows = [reader.table("counts", each).reader().read_all() for each in ("s", EVENT_TIMERS)]
            assert text(rows[0].to_pylist()) == text(given_rows.to_pylist())
            assert text(rows[1].to_pylist()) == text(timers.to_pylist())
