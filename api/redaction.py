"""Keeps secrets out of what is shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK = "*****"
_ASSIGNMENT = re.compile(
    r"(?i)((?:secret|password|passwd|token|access[_.-]?key|credential)[\w.-]*[\"']?\s*[:=]\s*[\"']?)([^\s\"',;]{4,})"
)
_BEARER = re.compile(r"(?i)(bearer\s+)[\w.~+/=-]{8,}")
_SECRET_VARIABLES = ("SECRET", "TOKEN", "PASSWORD", "KEY")
_SECRET_CHARACTERS_MIN = 6


def redact(text: str, environment: Mapping[str, str]) -> str:
    """Masks the values of secret variables, bearer tokens, and what stands after words such as password.

    Args:
        text: What is to be shown.
        environment: Variables whose values must not be in it, where their names say that they are secret.
    """
    for name, value in environment.items():
        if len(value) >= _SECRET_CHARACTERS_MIN and any(word in name.upper() for word in _SECRET_VARIABLES):
            text = text.replace(value, MASK)
    return _BEARER.sub(rf"\1{MASK}", _ASSIGNMENT.sub(rf"\1{MASK}", text))
