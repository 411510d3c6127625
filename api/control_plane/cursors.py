"""Cursors: places in a list, as opaque text for clients."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from keyscale.db.repositories.pages import PageRequest
from keyscale.jobs.protocol.storable_text import is_storable

from ..errors import CursorInvalidError

_NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Listing:
    """The part of a list that a client asks for.

    Attributes:
        limit: The largest number of rows.
        after: The cursor in the previous answer; None: the first part.
    """

    limit: int
    after: str | None = None

    def page(self, *kinds: type) -> PageRequest:
        """Returns the requested page of a list.

        `kinds` are the types of the parts of the list's key.

        Raises:
            CursorInvalidError: The cursor belongs to another list.
        """
        return PageRequest(self.limit, read_cursor(self.after, *kinds))


def write_cursor(key: tuple[Any, ...] | None) -> str | None:
    """Returns the cursor after the row with a key.

    Returns None at the end of the list.
    """
    if key is None:
        return None
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Returns the key in a cursor; None without a cursor.

    Args:
        cursor: A text from a client.
        kinds: The types of the key's parts in this list.

    Raises:
        CursorInvalidError: The cursor belongs to another list.
    """
    if cursor is None:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or len(key) != len(kinds) or not all(map(_fits, key, kinds)):
        raise CursorInvalidError("after: it is not the `next` of an answer of this list")
    return tuple(key)


def _fits(part: Any, kind: type) -> bool:
    if type(part) is not kind:
        return False
    return is_storable(part) if isinstance(part, str) else isinstance(part, int) and 0 <= part <= _NUMBER_MAX
