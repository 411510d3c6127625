"""The limit on the size of an answer about state."""

from __future__ import annotations

from keyscale.errors import KeyscaleError

ANSWER_BYTES_MAX = 32 << 20
"""The control plane holds the answer in its memory, several times."""


class StateAnswerTooLargeError(KeyscaleError):
    """A read of state has a larger answer than the API sends."""

    code = "STATE_ANSWER_TOO_LARGE"
    domain = "user"
    advice = (
        "Ask for less, such as fewer rows or columns, or change fewer keys. `./keyscale state sql LOCATION` and"
        " `./keyscale state set LOCATION` have no such limit, with your own access to the object store."
    )


def check_answer(text: str, reserved_bytes: int = 0) -> None:
    """Checks the size of an answer.

    Args:
        text: The answer as JSON in ASCII, or its largest part.
        reserved_bytes: The most bytes of the other parts.

    Raises:
        StateAnswerTooLargeError: The answer is too large.
    """
    size = len(text) + reserved_bytes
    if size > ANSWER_BYTES_MAX:
        raise StateAnswerTooLargeError(f"the answer takes {size:,} bytes, and may take {ANSWER_BYTES_MAX:,}")
