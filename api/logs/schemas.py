"""Parts of a driver's log."""

from __future__ import annotations

from pydantic import Field

from ..shapes import Answer


class LogMatch(Answer):
    """A line of a log with the text that was searched."""

    offset: int = Field(description="Where the line begins.")
    text: str = Field(description="The line; of a line of more than 2000 characters, the part with the text.")


class LogAnswer(Answer):
    """A part of a driver's log.

    The log also holds output of the job's functions if executors run on the driver's host.
    """

    attempt: int
    text: str = Field(description="Lines with secrets masked, or a piece of a very long line; empty for a search.")
    offset: int = Field(
        description=(
            "Where `text` begins, in bytes of the driver's whole output. It is after the requested offset if that part"
            " was deleted."
        )
    )
    next_offset: int = Field(description="Where to continue: `offset` of the next request.")
    size_bytes: int = Field(description="Size of the whole log, including its deleted beginning.")
    truncated: bool = Field(description="Whether there was more text before `text`.")
    matches: list[LogMatch] | None = Field(default=None, description="The lines found by a search, 500 at most.")
