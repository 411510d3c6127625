"""Text of data and programs for a terminal."""

from __future__ import annotations

import re

# Control characters but for tabs and line feeds, and marks that change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Escapes control characters, which a terminal would obey.

    Tabs and line feeds stay.
    """
    return _CONTROL.sub(
        lambda found: f"\\u{ord(found[0]):04x}" if found[0] > "\xff" else f"\\x{ord(found[0]):02x}", text
    )
