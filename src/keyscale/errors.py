"""The root of Keyscale's error tree.

Every class below it carries a stable `code` that docs/errors.md explains, a `domain` (whose fault it is), `retryable`
(whether trying again can help) and `advice` (what the user can do). An error is made of one message, so that it
survives pickling between Spark's processes. Keyscale's own messages name states and types but never hold a user's data;
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
