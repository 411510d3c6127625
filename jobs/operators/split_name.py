"""Names a split by the values of its columns.

Slashes join the values. Backslashes escape the slashes in all values but the last, so that two splits never share a
name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ESCAPES = (("\\", "\\\\"), ("/", "\\/"))
"""What is replaced in all values but the last, in this order."""


def split_name(values: Sequence[object]) -> str:
    """Returns the name of the split with these values."""
    *first, last = map(str, values)
    return "/".join([*map(_escaped, first), last])


def name_before(name: str) -> str:
    """Returns the name that earlier versions gave a split."""
    return re.sub(r"\\([\\/])", r"\1", name)


def _escaped(value: str) -> str:
    for text, escape in ESCAPES:
        value = value.replace(text, escape)
    return value
