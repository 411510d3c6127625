"""Data in the form of Java's `DataOutput`, read with bounds.

The data comes from outside: each count and length is compared with the bytes that are left.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Final, Protocol

from .errors import FlinkSavepointError

BYTES_MAX: Final = 1 << 30
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_FLOAT = struct.Struct(">f")
_DOUBLE = struct.Struct(">d")
_VARINT_BITS_MAX = 28


class Stream(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Reads some bytes; fewer at the end."""


class JavaData:
    """Reads Java's forms of numbers and text from a stream.

    Args:
        stream: The stream, at its current position.
        size_bytes: The number of bytes that are left in it; None: unknown.
    """

    def __init__(self, stream: Stream, size_bytes: int | None = None) -> None:
        self._stream = stream
        self._left = size_bytes

    @classmethod
    def of(cls, data: bytes) -> JavaData:
        """Returns a reader of some bytes."""
        return cls(BytesIO(data), len(data))

    @property
    def is_at_end(self) -> bool:
        """Whether no byte is left; False if their number is unknown."""
        return self._left == 0

    def read(self, size: int) -> bytes:
        """Reads some bytes.

        Raises:
            FlinkSavepointError: The size is impossible, or the data ends before.
        """
        if size < 0 or size > (BYTES_MAX if self._left is None else self._left):
            raise FlinkSavepointError(f"the file is damaged: a part of it would have {size} bytes")
        data = self._stream.read(size)
        if len(data) != size:
            raise FlinkSavepointError("the file is damaged: it ends in the middle of a part")
        if self._left is not None:
            self._left -= size
        return data

    def rest(self) -> bytes:
        """Reads all bytes that are left of a known number."""
        return self.read(self._left or 0)

    def uint8(self) -> int:
        """Reads an unsigned byte."""
        return self.read(1)[0]

    def int8(self) -> int:
        """Reads a byte with a sign."""
        return int.from_bytes(self.read(1), "big", signed=True)

    def boolean(self) -> bool:
        """Reads a boolean."""
        return self.uint8() != 0

    def int16(self) -> int:
        """Reads an integer of two bytes."""
        return int(_SHORT.unpack(self.read(2))[0])

    def int32(self) -> int:
        """Reads an integer of four bytes."""
        return int(_INT.unpack(self.read(4))[0])

    def int64(self) -> int:
        """Reads an integer of eight bytes."""
        return int(_LONG.unpack(self.read(8))[0])

    def float32(self) -> float:
        """Reads a float of four bytes."""
        return float(_FLOAT.unpack(self.read(4))[0])

    def float64(self) -> float:
        """Reads a float of eight bytes."""
        return float(_DOUBLE.unpack(self.read(8))[0])

    def utf(self) -> str:
        """Reads a text with a length of two bytes.

        Java writes the zero character in two bytes, and others beyond the first plane as two surrogates.
        """
        data = self.read(int.from_bytes(self.read(2), "big"))
        try:
            return _without_surrogates(data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass"))
        except UnicodeError:
            raise FlinkSavepointError("the file is damaged: a text has impossible characters") from None

    def block(self) -> bytes:
        """Reads bytes that follow their length of four bytes."""
        return self.read(self.int32())

    def count(self) -> int:
        """Reads a number of parts, each of a byte or more.

        Raises:
            FlinkSavepointError: So many parts are not left.
        """
        found = self.int32()
        self.check_count(found)
        return found

    def check_count(self, count: int) -> None:
        """Checks a number of parts, each of a byte or more.

        Raises:
            FlinkSavepointError: So many parts are not left.
        """
        if count < 0 or count > (BYTES_MAX if self._left is None else self._left):
            raise FlinkSavepointError(f"the file is damaged: it would have {count} parts")

    def text(self) -> str | None:
        """Reads a text as Flink's `StringValue` writes it.

        Its length plus one is before its characters, all of variable size.
        """
        length = self.varint()
        if length == 0:
            return None
        if self._left is not None and length - 1 > self._left:
            raise FlinkSavepointError("the file is damaged: a text is longer than the rest of it")
        units = [self.varint() for _ in range(length - 1)]
        try:
            return _without_surrogates("".join(map(chr, units)))
        except (ValueError, OverflowError):
            raise FlinkSavepointError("the file is damaged: a text has impossible characters") from None

    def varint(self) -> int:
        """Reads a number without a sign, in bytes of seven bits."""
        found, bits = 0, 0
        while True:
            byte = self.uint8()
            found |= (byte & 0x7F) << bits
            if byte < 0x80:
                return found
            bits += 7
            if bits > _VARINT_BITS_MAX:
                raise FlinkSavepointError("the file is damaged: a length has no end")


def _without_surrogates(text: str) -> str:
    """Returns a text of UTF-16 units as Python has it."""
    if text.isascii():
        return text
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
