"""Text of data cannot control a terminal."""

from __future__ import annotations

import pytest

from keyscale.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b2J", "\\x9b2J"),
        ("one\rtwo\x7f\x00", "one\\x0dtwo\\x7f\\x00"),
        ("\u202efdp", "\\u202efdp"),
        ("a line\n\tand Jürgen's 日本 👩\u200d👧\n", "a line\n\tand Jürgen's 日本 👩\u200d👧\n"),
    ],
)
def test_control_characters_are_escaped_and_other_text_stays(text: str, shown: str) -> None:
    assert printable(text) == shown
