"""Dead letters of a sink: rows that its system would refuse.

They go to a separate sink.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from ..errors import SinkRowsRefusedError
from .sink import CheckedSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from .sink import Sink, SinkContext

logger = logging.getLogger(__name__)

REFUSED_MAX = 10_000  # rows; finding a refused row takes several statements, and each passes through the driver
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Passes refused rows to a sink.

    The dead letter sink's uid is the refusing sink's uid with an ending.

    Attributes:
        sink: The sink for refused rows; None if they fail the batch.
    """

    sink: Sink | None

    def prepare(self, rows: DataFrame, reasons: Mapping[str, int], context: SinkContext) -> str:
        """Stages refused rows with the column `error`; returns the token.

        Args:
            rows: The rows.
            reasons: The number of rows by reason.
            context: The batch of the refusing sink.

        Raises:
            SinkRowsRefusedError: No sink takes refused rows.
        """
        described = "; ".join(f"{count} with {reason}" for reason, count in sorted(reasons.items()))
        if self.sink is None:
            raise SinkRowsRefusedError(f"rows of batch {context.batch_id} would be refused: {described}")
        logger.warning("batch %d: dead letters of sink %s: %s", context.batch_id, context.uid, described)
        return self.sink.prepare(rows, _of_letters(context))

    def check(self, schema: pa.Schema, context: SinkContext) -> None:
        """Checks the dead letter sink, as a sink is checked.

        `schema` is the schema of refused rows, without the column `error`.
        """
        sink: object = self.sink
        if isinstance(sink, CheckedSink):
            sink.check(schema.append(pa.field("error", pa.string())), _of_letters(context))

    def publish(self, token: str | None) -> None:
        if self.sink is not None and token is not None:
            self.sink.publish(token)

    def discard(self, token: str | None) -> None:
        if self.sink is not None and token is not None:
            self.sink.discard(token)

    def recover(self, context: SinkContext) -> None:
        if self.sink is not None:
            self.sink.recover(_of_letters(context))


def refused(rows: Sequence[_Row], accept: Callable[[Sequence[_Row]], str | None]) -> Iterator[tuple[_Row, str]]:
    """Submits rows in as few parts as possible, in their order.

    Yields each refused row with the reason.

    Args:
        rows: The rows.
        accept: Accepts all given rows and returns None, or accepts no row and returns the reason.

    Raises:
        SinkRowsRefusedError: Too many rows are refused.
    """
    parts, count = [rows], 0
    while parts:
        part = parts.pop()
        reason = accept(part)
        if reason is None:
            continue
        if len(part) > 1:
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
            continue
        count += 1
        if count > REFUSED_MAX:
            raise SinkRowsRefusedError(f"more than {REFUSED_MAX} rows of a batch would be refused: {reason}")
        yield part[0], reason


def _of_letters(context: SinkContext) -> SinkContext:
    return replace(context, uid=f"{context.uid}-dead-letters")
