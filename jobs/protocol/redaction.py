"""Masks secrets in text that is shown. Pure."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Span: TypeAlias = tuple[int, int]
"""The begin and end of a part of a text."""

JOB_SECRET_PREFIX = "KEYSCALE_JOB_SECRET_"  # noqa: S105 - the beginning of a variable's name
NAMED_VARIABLE = "KEYSCALE_REVEALED_NAMES"
"""The environment variable with the names of the secrets that a driver's job names; its own name does not mark it as
secret.
"""
MASK = "*****"
SECRET_CHARACTERS_MIN = 6
"""A shorter value is not masked: its mask would also hide parts of ordinary text."""

SECRET_LINE_CHARACTERS_MIN = 16
"""Minimum length of a line of a multi-line secret, such as a key, that is masked by itself."""

VALUE_CHARACTERS_MAX = 8192
"""Maximum masked length of an unknown value after a word such as `password=`: a cut log is read back this far."""

# All patterns have limits, as a job chooses what it prints: a long line would otherwise be scanned once per word.
_ASSIGNED = re.compile(r"(?i)secret|password|passwd|token|access[_.-]?key|credential")
_ASSIGNMENT = re.compile(r"[\w.-]{0,100}[\"']?\s{0,100}[:=]\s{0,100}[\"']?")
_AFTER_ASSIGNED = re.compile(r"[\s\"',;]")
_ASSIGNED_CHARACTERS_MIN = 4
_BEARER = re.compile(r"(?i)bearer")
_BLANK = re.compile(r"\s{1,100}")
_AFTER_BEARER = re.compile(r"[^\w.~+/=-]")
_BEARER_CHARACTERS_MIN = 8
_BEFORE_VALUE_CHARACTERS_MAX = 400
_PASSWORDS_MAX = 100
"""Maximum number of passwords in a value that are masked at every occurrence."""
_SECRET_VARIABLE = re.compile(r"(?i)secret|token|passw(or)?d|passphrase|credential|(^|_)(api|access)?key(_|$)")


def redact(text: str, environment: Mapping[str, str]) -> str:
    """Masks known secrets, bearer tokens, and values after words such as `password=`.

    Args:
        text: The text to show.
        environment: As for `mask_known`.
    """
    return Mask(environment).redact(text)


def redact_named(name: str, value: str) -> str:
    """Masks a value, such as a parameter, by its name or form.

    Of an address with a password, the password alone is masked.
    """
    if _SECRET_VARIABLE.search(name):
        return MASK
    for password in sorted(islice(_passwords(value), _PASSWORDS_MAX), key=len, reverse=True):
        value = value.replace(password, MASK)
    return redact(value, {})


def mask_known(text: str, environment: Mapping[str, str]) -> str:
    """Masks the values of secret variables and the passwords inside them.

    Values are also masked as they appear inside quotes.

    Args:
        text: The text to show.
        environment: Variables; a value is masked if its variable's name marks it as secret.
    """
    return Mask(environment)(text)


class Mask:
    """Masks the secrets of `mask_known` in many texts.

    A character is masked if any occurrence of a secret covers it, wherever the text begins: a part of a text is masked
    like the whole if `reach_characters` around the part are known.

    Args:
        environment: As for `mask_known`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._forms = {
            form
            for name, value in environment.items()
            if _SECRET_VARIABLE.search(name.removeprefix("KEYSCALE_"))
            for form in _forms(value)
            if len(form) >= SECRET_CHARACTERS_MIN
        }
        self.reach_characters = max([_BEFORE_VALUE_CHARACTERS_MAX + VALUE_CHARACTERS_MAX, *map(len, self._forms)])

    def __call__(self, text: str) -> str:
        return masked(text, _merged(self._known(text)))

    def redact(self, text: str) -> str:
        """Masks bearer tokens and values after words such as `password=`, too."""
        return masked(text, _merged([*self._known(text), *_unknown(text)]))

    def spans_of_part(self, text: str) -> list[Span]:
        """Returns the spans that `redact` masks in a part of a text.

        They include pieces of secrets that the part's ends cut.
        """
        return _merged([*self._known(text), *_unknown(text), *self._cut(text)])

    def unfinished(self, text: str) -> int:
        """Returns the length of a possible secret's beginning at the end."""
        return max((len(text) - begin for form in self._forms for begin in _beginnings(text, form, 1)), default=0)

    def _known(self, text: str) -> Iterator[Span]:
        for form in self._forms:
            for begin in _occurrences(text, form):
                yield begin, begin + len(form)

    def _cut(self, text: str) -> Iterator[Span]:
        for form in self._forms:
            for begin in _beginnings(text, form, SECRET_CHARACTERS_MIN):
                yield begin, len(text)
            last, head = form[-SECRET_CHARACTERS_MIN:], text[: len(form) - 1]
            for end in (begin + len(last) for begin in _occurrences(head, last)):
                if form.endswith(text[:end]):
                    yield 0, end


def masked(text: str, spans: Sequence[Span], begin: int = 0, end: int | None = None) -> str:
    """Masks spans in a part of a text.

    The mask is in the part in which its span begins.

    Args:
        text: The text.
        spans: The spans, in order and disjoint.
        begin: Where the part begins.
        end: Where it ends; None for the end of the text.
    """
    end = len(text) if end is None else end
    shown, at = [], begin
    for first, last in islice(spans, bisect_right(spans, begin, key=itemgetter(1)), None):
        if first >= end:
            break
        shown.append(text[at:first])
        if first >= begin:
            shown.append(MASK)
        at = last
    shown.append(text[at:end])
    return "".join(shown)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Returns spans in order, with overlapping spans merged."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _occurrences(text: str, wanted: str) -> Iterator[int]:
    """Yields the positions of a text in another text, also overlapping ones."""
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _beginnings(text: str, form: str, characters_min: int) -> Iterator[int]:
    """Yields where a text's end may be the beginning of a form."""
    tail = max(0, len(text) - len(form) + 1)
    for at in _occurrences(text[tail:], form[:characters_min]):
        if form.startswith(text[tail + at :]):
            yield tail + at


def _unknown(text: str) -> Iterator[Span]:
    yield from _assigned(text)
    yield from _values(text, _BEARER, _BLANK, _AFTER_BEARER, _BEARER_CHARACTERS_MIN)


def _assigned(text: str) -> Iterator[Span]:
    return _values(text, _ASSIGNED, _ASSIGNMENT, _AFTER_ASSIGNED, _ASSIGNED_CHARACTERS_MIN)


def _values(
    text: str, word: re.Pattern[str], between: re.Pattern[str], after: re.Pattern[str], characters_min: int
) -> Iterator[Span]:
    """Yields the values that follow a word."""
    value_end = -1
    for found in word.finditer(text):
        if (value := between.match(text, found.end())) is None:
            continue
        begin = value.end()
        if begin > value_end:  # otherwise it is in the value found last
            following = after.search(text, begin)
            value_end = len(text) if following is None else following.start()
        if value_end - begin >= characters_min:
            yield begin, min(value_end, begin + VALUE_CHARACTERS_MAX)


def _forms(value: str) -> Iterator[str]:
    """Yields the texts in which a secret may appear.

    For an address with a password, the password alone is one of them.
    """
    lines = [line.strip() for line in value.splitlines()] if "\n" in value else []
    long_lines = [line for line in lines if len(line) >= SECRET_LINE_CHARACTERS_MIN]  # a log is masked line by line
    for part in (value.strip(), *_passwords(value), *long_lines):
        yield from (part, repr(part)[1:-1], json.dumps(part)[1:-1])


def _passwords(value: str) -> Iterator[str]:
    with suppress(ValueError):  # the value is not an address
        if password := urlsplit(value).password:
            yield from (password, unquote(password))
    yield from (value[begin:end] for begin, end in _assigned(value))
