"""The root of Keyscale's error tree.

Every class below it carries a stable `code` that docs/errors.md explains, whose fault it is (`domain`), whether trying
the same again can help (`retryable`) and what the user can do (`advice`). An error is made of one message, so that it
survives pickling between Spark's processes. A message of ours names states and types but never holds a user's data;
only an exception of the user's own code is quoted, in full.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Domain = Literal["user", "external", "internal"]


class KeyscaleError(Exception):
    """Root of all errors that Keyscale raises on purpose."""

    code: ClassVar[str] = "KEYSCALE_ERROR"
    domain: ClassVar[Domain] = "internal"
    retryable: ClassVar[bool] = False
    advice: ClassVar[str] = "Report this with the driver's log."
