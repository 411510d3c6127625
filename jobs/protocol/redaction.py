"""Masks secrets in text that is shown. Pure."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JOB_SECRET_PREFIX = "KEYSCALE_JOB_SECRET_"  # noqa: S105 - the beginning of a variable's name
MASK = "*****"
SECRET_CHARACTERS_MIN = 6
"""A shorter value is not masked: it would also mask parts of ordinary text."""

SECRET_LINE_CHARACTERS_MIN = 16
"""A line of a secret of several lines, such as a key, is masked by itself if it is at least so long."""

# Limited, as the rest of a long line would be looked at once for each word in it: a job chooses what it prints.
_ASSIGNMENT = re.compile(
    r"(?i)((?:secret|password|passwd|token|access[_.-]?key|credential)[\w.-]{0,100}[\"']?\s*[:=]\s*[\"']?)([^\s\"',;]{4,})"
)
_BEARER = re.compile(r"(?i)(bearer\s+)[\w.~+/=-]{8,}")
_PASSWORDS_MAX = 100
"""Of a value, those that are masked wherever else it has them."""
_SECRET_VARIABLE = re.compile(r"(?i)secret|token|passw(or)?d|passphrase|credential|(^|_)(api|access)?key(_|$)")


def redact(text: str, environment: Mapping[str, str]) -> str:
    """Masks known secrets, bearer tokens, and values after words such as `password=`.

    Args:
        text: The text to show.
        environment: As for `mask_known`.
    """
    return Mask(environment).redact(text)


def redact_named(name: str, value: str) -> str:
    """Returns a value, such as a parameter, as it is shown: masked if its name or its form marks it as secret.

    Of an address with a password, the password alone is masked.
    """
    if _SECRET_VARIABLE.search(name):
        return MASK
    for password in sorted(islice(_passwords(value), _PASSWORDS_MAX), key=len, reverse=True):
        value = value.replace(password, MASK)
    return redact(value, {})


def mask_known(text: str, environment: Mapping[str, str]) -> str:
    """Masks the values of secret variables, also as they appear inside quotes, and the passwords inside of them.

    Args:
        text: The text to show.
        environment: Variables whose values are masked if their names mark them as secret.
    """
    return Mask(environment)(text)


class Mask:
    """Masks what `mask_known` masks, in many texts.

    Args:
        environment: As for `mask_known`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        forms = {
            form
            for name, value in environment.items()
            if _SECRET_VARIABLE.search(name.removeprefix("KEYSCALE_"))
            for form in _forms(value)
            if len(form) >= SECRET_CHARACTERS_MIN
        }
        # A secret may be part of another one: the longest form that fits is masked.
        self._forms = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None

    def __call__(self, text: str) -> str:
        return text if self._forms is None else self._forms.sub(MASK, text)

    def redact(self, text: str) -> str:
        """Masks bearer tokens and values after words such as `password=`, too."""
        return _BEARER.sub(rf"\1{MASK}", _ASSIGNMENT.sub(rf"\1{MASK}", self(text)))


def _forms(value: str) -> Iterator[str]:
    """Yields the texts by which a secret may be shown; of an address with a password also the password alone."""
    lines = [line.strip() for line in value.splitlines()] if "\n" in value else []
    long_lines = [line for line in lines if len(line) >= SECRET_LINE_CHARACTERS_MIN]  # a log is masked line by line
    for part in (value, value.strip(), *_passwords(value), *long_lines):
        yield from (part, repr(part)[1:-1], json.dumps(part)[1:-1])


def _passwords(value: str) -> Iterator[str]:
    with suppress(ValueError):  # it is no address
        if password := urlsplit(value).password:
            yield from (password, unquote(password))
    yield from (found[2] for found in _ASSIGNMENT.finditer(value))
