"""Text that every component can store and send.

PostgreSQL accepts no NUL, and UTF-8 no lone surrogate.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNFIT = re.compile("[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Returns whether text can be stored unchanged."""
    return _UNFIT.search(text) is None


def storable(text: str) -> str:
    r"""Replaces characters that cannot be stored by escapes such as `\x00`.

    The rest of the text is kept.
    """
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _made_storable(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


StorableText = Annotated[str, BeforeValidator(_made_storable)]
"""A message field for foreign text, such as an exception's: it arrives whatever it contains."""
