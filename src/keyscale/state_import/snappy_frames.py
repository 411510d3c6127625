"""The framed stream of Snappy, in which Flink compresses key groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from .errors import FlinkSavepointError

if TYPE_CHECKING:
    from .java_data import Stream

_COMPRESSED, _PLAIN, _PADDING, _BEGIN = 0x00, 0x01, 0x80, 0xFF
_CHECKSUM_BYTES = 4
_FRAME_BYTES_MAX = 65536
_CODEC = pa.Codec("snappy")


class SnappyFrames:
    """Reads what the frames of a stream contain."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Reads some bytes; fewer at the end of the stream.

        Raises:
            FlinkSavepointError: A frame is damaged.
        """
        parts = []
        while size > 0:
            if not self._rest and not self._next():
                break
            parts.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(parts[-1])
        return b"".join(parts)

    def _next(self) -> bool:
        """Opens the next frame with contents; returns whether there is one."""
        while len(head := self._stream.read(4)) == 4:
            body = self._stream.read(int.from_bytes(head[1:], "little"))
            if len(body) != int.from_bytes(head[1:], "little"):
                raise FlinkSavepointError("the file is damaged: it ends in the middle of a compressed frame")
            if head[0] in {_COMPRESSED, _PLAIN}:
                held = body[_CHECKSUM_BYTES:]
                self._rest = held if head[0] == _PLAIN else _decompressed(held)
                if self._rest:
                    return True
            elif head[0] != _BEGIN and head[0] < _PADDING:
                raise FlinkSavepointError("the file is damaged: a compressed frame has an unknown kind")
        return False


def _decompressed(held: bytes) -> bytes:
    size, bits = 0, 0
    for byte in held[:4]:
        size |= (byte & 0x7F) << bits
        bits += 7
        if byte < 0x80:
            break
    if size > _FRAME_BYTES_MAX:
        raise FlinkSavepointError(f"the file is damaged: a compressed frame would have {size} bytes")
    try:
        return bytes(_CODEC.decompress(held, size, asbytes=True))
    except (pa.ArrowException, OSError):
        raise FlinkSavepointError("the file is damaged: a frame cannot be decompressed") from None
