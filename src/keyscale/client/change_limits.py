"""The limits of one request that changes the state of several keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from keyscale.units import bytes_text, counted
from keyscale.vocabulary import REQUEST_BYTES_MAX, STATE_CHANGES_MAX

from .errors import ChangesTooLargeError

if TYPE_CHECKING:
    from collections.abc import Sized


def check_count(changes: Sized) -> None:
    """Checks the number of changes.

    Raises:
        ChangesTooLargeError: One request has fewer changes.
    """
    if len(changes) > STATE_CHANGES_MAX:
        raise ChangesTooLargeError(
            f"there are {counted(len(changes), 'change')}, and one request takes at most {STATE_CHANGES_MAX:,}"
        )


def check_size(body: Any) -> None:
    """Checks the size of a request's JSON.

    Raises:
        ChangesTooLargeError: The control plane takes less in one request.
    """
    size = len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
    if size > REQUEST_BYTES_MAX:
        raise ChangesTooLargeError(
            f"the changes take {bytes_text(size)}, and one request takes at most {bytes_text(REQUEST_BYTES_MAX)}"
        )
