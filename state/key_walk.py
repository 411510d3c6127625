"""Going through the keys of a batch one by one, with what their states hold read for many of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state.errors import KeyTooLargeError
from state.serializers.key_columns import encode_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from state.handle import KeyContext, KeyedState
    from state.stored_key import KeyBatch

SAMPLE_ROWS = 256
"""Enough to tell most from some. What is read for them is read key by key, at five times the cost of the rest."""


def walk_keys(
    context: KeyContext,
    batch: KeyBatch,
    keys: Iterable[tuple[Any, ...]],
    fields: Sequence[pa.Array],
    states: Callable[[], Iterable[KeyedState]],
) -> Iterator[tuple[Any, ...]]:
    """Make the key of each row of a batch the current one, in turn, and give it.

    The first rows are a sample. A state that was asked for most of their keys is read for all keys of the batch, sorted, which takes
    a fraction of the time; and no more memory than being asked for them takes, since what a batch has read is kept until it ends. So is
    a map that was asked for what most of them have in one field.

    Args:
        context: Whose current key it is.
        batch: The rows' stored keys.
        keys: The rows' keys.
        fields: What else the rows hold.
        states: Gives all states; asked after the sample, which may declare some.
    """
    upcoming = iter(keys)
    # Prefixes come first, so that the end of the sample takes no key of the rest.
    for context.prefix, context.key in zip(batch.head(SAMPLE_ROWS).rows(), upcoming, strict=False):
        yield context.key
    if len(batch) <= SAMPLE_ROWS:
        return
    for state in states():
        _read_ahead(state, batch, fields)
    # The very objects that were read, if they were, which are found sooner.
    for context.prefix, context.key in zip(batch.rows()[SAMPLE_ROWS:], upcoming, strict=False):
        yield context.key


def _read_ahead(state: KeyedState, batch: KeyBatch, fields: Sequence[pa.Array]) -> None:
    sample = batch.head(SAMPLE_ROWS)
    for field in state.fields_read_by(fields):
        try:
            read = sample if field is None else sample.extended(encode_column(field[:SAMPLE_ROWS]))
            if state.has_read_most(set(read.rows())):
                state.read_ahead(batch if field is None else batch.extended(encode_column(field)))
        except KeyTooLargeError:
            pass  # nobody has said that the field is a key
