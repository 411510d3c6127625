"""An object on its way to Python workers.

A small object travels with each task, a large object once to each executor.

PySpark pickles a function and all that it refers to into every task. It relies on PySpark's handling of a large pickled
function (since Spark 1.1, undocumented): above a mebibyte it is written to a file of the driver that stays until the
session ends, for each function, and so for each batch. A payload of more than `INLINE_BYTES_MAX` is a broadcast
variable instead, which is public API; `release` deletes it with its file.

It has no switch: the parts that Keyscale relies on are public.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .function_copies import pickled, unpickled

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

INLINE_BYTES_MAX: Final = 16 << 10


@dataclass(frozen=True)
class BroadcastPayload:
    """A pickled object, as a task holds it.

    Attributes:
        size_bytes: Its size.
    """

    size_bytes: int
    _content: bytes | Broadcast[bytes]

    @classmethod
    def of(cls, context: SparkContext, thing: Any) -> BroadcastPayload:
        """Pickles an object in its current state.

        Raises whatever the object raises if it cannot be pickled.
        """
        data = pickled(thing)
        return cls(len(data), data if len(data) <= INLINE_BYTES_MAX else context.broadcast(data))

    def open(self) -> Any:
        """Returns a new copy of the object.

        Raises whatever the object's class raises.
        """
        return unpickled(self._content if isinstance(self._content, bytes) else self._content.value)

    def release(self) -> None:
        """Deletes Spark's copies on the driver and the executors.

        No task may open the payload any more.
        """
        if not isinstance(self._content, bytes):
            with suppress(Exception):  # Spark may be gone, and all of its files with it
                self._content.destroy()
