"""The stored name of a processor's state.

Spark allows any text, Keyscale letters, digits and a few marks. A name that Keyscale allows is kept unchanged. Other
names are quoted as in URLs: `my state` is `my%20state`. Different names stay different, as `%` itself is quoted.
"""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote

from keyscale.state.doors.keyed import DescriptorError, check_name

_KEPT_CHARACTERS: Final = 80
_DIGEST_CHARACTERS: Final = 40


def stored_name(name: str) -> str:
    """Returns the name under which a state is kept.

    Raises:
        DescriptorError: The name is empty or `default`, which no state may have.
    """
    if "%" not in name and _is_allowed(name):
        return name
    quoted = quote(name, safe="").replace("~", "%7E")
    if quoted and not (quoted[0].isalpha() or quoted[0] in "_%"):
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if name != "default" and quoted and not _is_allowed(quoted):  # the quoted name is too long
        quoted = f"{quoted[:_KEPT_CHARACTERS]}%{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"
    check_name(quoted)
    return quoted


def _is_allowed(name: str) -> bool:
    try:
        check_name(name)
    except DescriptorError:
        return False
    return True
