"""Text that every part can store and send: PostgreSQL takes no NUL, and UTF-8 no half of a surrogate pair."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNFIT = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Whether text can be stored as it is."""
    return _UNFIT.search(text) is None


def storable(text: str) -> str:
    r"""Returns text with escapes such as `\x00` in place of what cannot be stored, so that the rest is not lost."""
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _made_storable(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


StorableText = Annotated[str, BeforeValidator(_made_storable)]
"""A field of a message for text that others wrote, such as an exception's: it arrives whatever it holds."""
