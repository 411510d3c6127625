"""Schema evolution: reads values of one type as another; pure.

A type can be read as: itself; a wider number of the same kind and sign, or a double if it is an integer of up to 32
bits; a decimal with at least as many digits on both sides of the point; a struct with fields added (read as null) or
dropped; a list or map whose parts can be read. Fields are matched by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Context, Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Rule(StrEnum):
    """How a part of a written type is read as another type."""

    WIDENED = "widened"
    ADDED_FIELD = "added field"  # read as null
    DROPPED_FIELD = "dropped field"
    MOVED_FIELDS = "moved fields"  # found by their names
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a type that differs between written and wanted form.

    Attributes:
        rule: How the part is read.
        path: The part: names of fields, `[]` for a list's elements and `{}` for a map's values; empty for the type.
        written: Its type as written; None for an added field.
        wanted: Its type as wanted; None for a dropped field.
    """

    rule: Rule
    path: str
    written: pa.DataType | None
    wanted: pa.DataType | None


def can_read(written: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether values written with one type can be read as another."""
    return written == wanted or all(each.rule is not Rule.UNREADABLE for each in differences(written, wanted))


def differences(written: pa.DataType, wanted: pa.DataType) -> Iterator[Difference]:
    """Yields the differing parts of two types, and their reading rules.

    A part is unreadable if the types do not fit.
    """
    types = pa.types
    if types.is_struct(written) and types.is_struct(wanted):
        yield from _struct_differences(written, wanted)
    elif _is_list(written) and _is_list(wanted):
        yield from _below("[]", differences(written.value_type, wanted.value_type))
    elif types.is_map(written) and types.is_map(wanted) and written.key_type == wanted.key_type:
        yield from _below("{}", differences(written.item_type, wanted.item_type))
    elif written != wanted:
        yield Difference(Rule.WIDENED if _is_widened(written, wanted) else Rule.UNREADABLE, "", written, wanted)


def _struct_differences(written: pa.DataType, wanted: pa.DataType) -> Iterator[Difference]:
    before, after = [field.name for field in written], [field.name for field in wanted]
    for name in after:
        if name in before:
            yield from _below(name, differences(written.field(name).type, wanted.field(name).type))
        else:
            yield Difference(Rule.ADDED_FIELD, name, None, wanted.field(name).type)
    for name in before:
        if name not in after:
            yield Difference(Rule.DROPPED_FIELD, name, written.field(name).type, None)
    if [name for name in before if name in after] != [name for name in after if name in before]:
        yield Difference(Rule.MOVED_FIELDS, "", written, wanted)


def _below(name: str, parts: Iterator[Difference]) -> Iterator[Difference]:
    for part in parts:
        separator = "." if part.path and not part.path.startswith(("[", "{")) else ""
        yield replace(part, path=f"{name}{separator}{part.path}")


def conversion(written: pa.DataType, wanted: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns a function that converts values, or None if unnecessary.

    Nulls stay null.
    """
    if written == wanted:
        return None
    types = pa.types
    convert: Callable[[Any], Any]  # some are lambdas, because each is one of several
    if types.is_struct(wanted):
        convert = _struct_conversion(written, wanted)
    elif _is_list(wanted):
        item = conversion(written.value_type, wanted.value_type)
        convert = lambda items: items if item is None else [item(each) for each in items]  # noqa: E731
    elif types.is_map(wanted):
        value = conversion(written.item_type, wanted.item_type)
        convert = lambda pairs: pairs if value is None else {k: value(v) for k, v in pairs.items()}  # noqa: E731
    elif types.is_floating(wanted):
        convert = float
    elif types.is_decimal(wanted):
        context = Context(prec=wanted.precision)  # Python's own has 28 digits
        exponent = Decimal((0, (1,), -wanted.scale))
        convert = lambda number: number.quantize(exponent, context=context)  # noqa: E731
    else:
        return None
    return lambda each: None if each is None else convert(each)


def _struct_conversion(written: pa.DataType, wanted: pa.DataType) -> Callable[[Any], Any]:
    fields = [
        (f.name, conversion(written.field(f.name).type, f.type) if written.get_field_index(f.name) >= 0 else None)
        for f in wanted
    ]

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {name: value.get(name) if each is None else each(value.get(name)) for name, each in fields}

    return convert


def _is_list(of_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(of_type) or pa.types.is_large_list(of_type))


def _is_widened(written: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    for same_kind in (types.is_signed_integer, types.is_unsigned_integer, types.is_floating):
        if same_kind(written) and same_kind(wanted):
            return bool(written.bit_width <= wanted.bit_width)
    if types.is_integer(written) and types.is_float64(wanted):
        return bool(written.bit_width <= 32)
    if types.is_decimal(written) and types.is_decimal(wanted):
        digits = wanted.precision - wanted.scale >= written.precision - written.scale
        return bool(wanted.scale >= written.scale and digits)
    return False
