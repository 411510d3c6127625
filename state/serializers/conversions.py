"""The values that convert to a declared type without loss.

The table covers Python values and Arrow columns. Outputs, state and columnar state share it, so that a value that one
accepts means the same in all.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import SerializationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Convert = Callable[[Any], Any]


class Kind(StrEnum):
    """A kind of scalar value."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOATING = "floating"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    INSTANT = "instant"  # a time with a time zone
    LOCAL_TIME = "local time"  # a time without a time zone
    UUID = "uuid"


CONVERTS: dict[Kind, tuple[Kind, ...]] = {
    Kind.BOOLEAN: (Kind.BOOLEAN,),
    Kind.INTEGER: (Kind.INTEGER, Kind.BOOLEAN, Kind.FLOATING, Kind.DECIMAL),  # whole numbers within the type's range
    Kind.FLOATING: (Kind.FLOATING, Kind.INTEGER, Kind.BOOLEAN),  # integers that the type holds exactly
    Kind.DECIMAL: (Kind.DECIMAL, Kind.INTEGER),  # numbers whose digits fit
    Kind.TEXT: (Kind.TEXT,),
    Kind.BYTES: (Kind.BYTES, Kind.TEXT),  # text as UTF-8
    Kind.DATE: (Kind.DATE, Kind.LOCAL_TIME),  # times at midnight
    Kind.INSTANT: (Kind.INSTANT, Kind.LOCAL_TIME),  # times without a time zone are taken as UTC
    Kind.LOCAL_TIME: (Kind.LOCAL_TIME,),
    Kind.UUID: (Kind.UUID,),
}
"""The kinds of values that each kind of type accepts, if nothing is lost.

A float is rounded to the digits that a 32-bit type has: that is what the type means. All else that would change a value
is refused.
"""

_EXACT: dict[Kind, frozenset[type]] = {
    Kind.BOOLEAN: frozenset({bool}),
    Kind.INTEGER: frozenset({int}),
    Kind.FLOATING: frozenset({float}),
    Kind.TEXT: frozenset({str}),
    Kind.BYTES: frozenset({bytes}),
    Kind.DATE: frozenset({dt.date}),
}
_NONE = type(None)


def kind_of_type(of_type: pa.DataType) -> Kind | None:
    """Returns the kind of an Arrow type.

    Nested types, and types that are left to Arrow, have None.
    """
    types = pa.types
    if types.is_timestamp(of_type):
        return Kind.LOCAL_TIME if of_type.tz is None else Kind.INSTANT
    tests: dict[Kind, Convert] = {
        Kind.BOOLEAN: types.is_boolean,
        Kind.INTEGER: types.is_integer,
        Kind.FLOATING: types.is_floating,
        Kind.DECIMAL: types.is_decimal,
        Kind.TEXT: lambda each: types.is_string(each) or types.is_large_string(each),
        Kind.BYTES: lambda each: (
            types.is_binary(each) or types.is_large_binary(each) or types.is_fixed_size_binary(each)
        ),
        Kind.DATE: types.is_date32,
        Kind.UUID: pa.uuid().__eq__,
    }
    return next((kind for kind, is_kind in tests.items() if is_kind(of_type)), None)


def kind_of_value(value: Any) -> Kind | None:
    """Returns the kind of a Python, NumPy or pandas scalar, or None."""
    if isinstance(value, dt.datetime):
        return Kind.LOCAL_TIME if value.tzinfo is None else Kind.INSTANT
    return next((kind for kind, classes in _CLASSES if isinstance(value, classes)), None)


_CLASSES: tuple[tuple[Kind, tuple[type, ...]], ...] = (
    (Kind.BOOLEAN, (bool, np.bool_)),
    (Kind.INTEGER, (int, np.integer)),
    (Kind.FLOATING, (float, np.floating)),
    (Kind.DECIMAL, (Decimal,)),
    (Kind.TEXT, (str,)),
    (Kind.BYTES, (bytes, bytearray, memoryview)),
    (Kind.DATE, (dt.date,)),
    (Kind.UUID, (uuid.UUID,)),
)


@cache
def converter(of_type: pa.DataType) -> Convert:
    """Returns a conversion to the Python class of an Arrow type.

    The function takes no null. It raises SerializationError if the type cannot hold the value without loss; the message
    holds no values.
    """
    types = pa.types
    if types.is_struct(of_type):
        return _struct_converter(of_type)
    if types.is_map(of_type):
        key, item = converter(of_type.key_type), _nullable(converter(of_type.item_type))
        return lambda value: [(key(each), item(held)) for each, held in _pairs(value, of_type)]
    if types.is_list(of_type) or types.is_large_list(of_type):
        element = _nullable(converter(of_type.value_type))
        return lambda value: [element(each) for each in _elements(value, of_type)]
    kind = kind_of_type(of_type)
    if kind is None:
        return _kept_by_arrow(of_type) if _is_left_to_arrow(of_type) else lambda value: value
    accepted, convert = CONVERTS[kind], _SCALARS[kind](of_type)

    def scalar(value: Any) -> Any:
        if kind_of_value(value) not in accepted:
            raise _refused(_named(value), of_type)
        return convert(value)

    return scalar


def column_of(values: Any, of_type: pa.DataType) -> pa.Array:
    """Returns Arrow or Python values as one column of a type.

    None stands for null.

    Raises:
        SerializationError: The type cannot hold a value without loss.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return exact_cast(values, of_type) if isinstance(values, pa.Array) else exact_array(values, of_type)


def exact_array(values: Sequence[Any], of_type: pa.DataType) -> pa.Array:
    """Returns Python values, None for null, as a column of a type.

    Raises:
        SerializationError: The type cannot hold a value without loss.
    """
    if not set(map(type, values)) <= {*exact_classes(of_type), _NONE}:
        convert = converter(of_type)
        values = [None if value is None else convert(value) for value in values]
    try:
        return pa.array(values, of_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        found = sorted({type(value).__name__ for value in values if value is not None})
    # Outside the handler: Arrow's own message quotes the value.
    convert = converter(of_type)
    for value in values:
        if value is not None:
            convert(value)  # says what is wrong with it
    raise _refused(f"one of these values of: {', '.join(found)}", of_type)


def exact_cast(column: pa.Array | pa.ChunkedArray, of_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Returns a column as a type.

    Raises:
        SerializationError: The type cannot hold a value of the column without loss.
    """
    written = column.type
    if written == of_type or pa.types.is_null(written):
        return column.cast(of_type)
    is_nested = pa.types.is_nested(of_type)
    if (is_nested and _leaves(written) != _leaves(of_type)) or any(map(_is_left_to_arrow, (written, of_type))):
        return exact_array(column.to_pylist(), of_type)
    kind, wanted = kind_of_type(written), kind_of_type(of_type)
    is_listed = kind is None or wanted is None or kind in CONVERTS[wanted]
    if is_listed:
        try:
            cast = column.cast(of_type)
            if cast.null_count == column.null_count and _is_kept(column, cast, wanted):
                return cast
        except pa.ArrowException:
            pass
        return exact_array(
            column.to_pylist(), of_type
        )  # finds the value, or that the values fit though the types do not
    raise _refused(f"a column of type {written}", of_type)


def exact_classes(of_type: pa.DataType) -> frozenset[type]:
    """Returns the Python classes that a type holds exactly within its range."""
    kind = kind_of_type(of_type)
    return _EXACT.get(kind, frozenset()) if kind is not None and not _rounds(of_type) else frozenset()


def _is_kept(column: pa.ChunkedArray, cast: pa.ChunkedArray, wanted: Kind | None) -> bool:
    """Checks what Arrow does not: the time of day, and finite floats."""
    if wanted is Kind.DATE:
        return bool(pc.all(pc.equal(cast.cast(column.type), column)).as_py() is not False)
    if wanted is Kind.FLOATING and pa.types.is_floating(column.type):
        infinite = pc.sum(pc.is_inf(cast)).as_py()
        return bool(infinite == pc.sum(pc.is_inf(column)).as_py())
    return True


def _leaves(of_type: pa.DataType, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """Returns the unnested types, each with the struct fields above it.

    Arrow's cast would put null into a field that the column lacks.
    """
    if not pa.types.is_nested(of_type):
        return [(path, of_type)]
    fields = [of_type.field(at) for at in range(of_type.num_fields)]
    is_struct = pa.types.is_struct(of_type)
    return [leaf for each in fields for leaf in _leaves(each.type, (*path, each.name) if is_struct else path)]


def _is_left_to_arrow(of_type: pa.DataType) -> bool:
    """Returns whether a type is a time without a kind.

    Examples are a duration and a time of day.
    """
    return bool(pa.types.is_temporal(of_type)) and kind_of_type(of_type) is None


def _kept_by_arrow(of_type: pa.DataType) -> Convert:
    """Returns a conversion that refuses a value which Arrow would change."""

    def convert(value: Any) -> Any:
        try:
            is_kept = bool(pa.scalar(value, of_type).as_py() == value)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            is_kept = False
        if not is_kept:
            raise _refused(_named(value), of_type)
        return value

    return convert


def _rounds(of_type: pa.DataType) -> bool:
    """Returns whether Arrow silently changes values of the type's own classes."""
    types = pa.types
    if types.is_timestamp(of_type):
        return bool(of_type.unit in {"s", "ms"})
    return bool(types.is_floating(of_type) and not types.is_float64(of_type))


def _refused(what: str, of_type: pa.DataType) -> SerializationError:
    return SerializationError(f"{what} is not a value of type {of_type}")


def _named(value: Any, what: str = "") -> str:
    """Describes a value by its class, without its content."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}{what}"


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _elements(value: Any, of_type: pa.DataType) -> Any:
    if isinstance(value, (str, bytes, Mapping)):
        raise _refused(_named(value), of_type)
    try:
        return iter(value)
    except TypeError:
        raise _refused(_named(value), of_type) from None


def _pairs(value: Any, of_type: pa.DataType) -> Any:
    if isinstance(value, Mapping):
        return value.items()
    pairs = list(_elements(value, of_type))
    if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
        raise _refused("a list of something else than pairs", of_type)
    return pairs


def _struct_converter(of_type: pa.DataType) -> Convert:
    names = tuple(field.name for field in of_type)
    converts = tuple(of_field(field.name, converter(field.type)) for field in of_type)

    def convert(value: Any) -> dict[str, Any]:
        parts = struct_parts(value, names, of_type)
        return {name: each(part) for name, each, part in zip(names, converts, parts, strict=True)}

    return convert


def struct_parts(value: Any, names: Sequence[str], of_type: pa.DataType) -> list[Any]:
    """Returns the values of a struct's fields in their order.

    Args:
        value: A mapping with all fields, or a sequence of their values.
        names: The names of the fields.
        of_type: The struct.

    Raises:
        SerializationError: A field is missing or not declared.
    """
    if not isinstance(value, Mapping):
        parts = list(_elements(value, of_type))
        if len(parts) != len(names):
            raise _refused(_named(value, f" of {len(parts)} values"), of_type)
        return parts
    if problem := other_names(value.keys(), names, "field"):
        raise _refused(_named(value, f" {problem}"), of_type)
    return [value[name] for name in names]


def of_field(name: str, convert: Convert) -> Convert:
    """Returns a conversion of a struct's field.

    Null stays null. A refusal names the field.
    """

    def converted(part: Any) -> Any:
        if part is None:
            return None
        try:
            return convert(part)
        except SerializationError as error:
            reason = str(error)
        raise SerializationError(f"field {name!r}: {reason}")

    return converted


def other_names(given: Collection[Any], names: Sequence[str], what: str) -> str:
    """Says how given names differ from declared names.

    Returns "" if the names are the same. Undeclared names are counted, since the keys of a dict may be data; a name
    that resembles a missing name is shown.
    """
    missing = [name for name in names if name not in given]
    others = set(given) - set(names)
    if not missing and not others:
        return ""
    alike = {name: get_close_matches(name, [each for each in others if isinstance(each, str)], 1) for name in missing}
    lacks = [f"{name!r}" + "".join(f" (it has {each!r})" for each in alike[name]) for name in missing]
    parts = [f"without the {what}{'s' if len(missing) > 1 else ''} {', '.join(lacks)}"] if missing else []
    others -= {each for shown in alike.values() for each in shown}
    if others:
        parts.append(f"with {len(others)} {what}{'s' if len(others) > 1 else ''} that the declaration lacks")
    return " and ".join(parts)


def _boolean(_: pa.DataType) -> Convert:
    return bool


def _integer(of_type: pa.DataType) -> Convert:
    signed = pa.types.is_signed_integer(of_type)
    limit = 1 << (of_type.bit_width - 1 if signed else of_type.bit_width)
    least = -limit if signed else 0

    def convert(value: Any) -> int:
        try:
            whole = int(value)
        except (ValueError, OverflowError):  # not a number, or infinite
            raise _refused(_named(value, " that is not finite"), of_type) from None
        if whole != value:
            raise _refused(_named(value, " with a fraction"), of_type)
        if not least <= whole < limit:
            raise _refused(_named(value, " out of range"), of_type)
        return whole

    return convert


def _floating(of_type: pa.DataType) -> Convert:
    dtype = np.dtype(of_type.to_pandas_dtype())

    def convert(value: Any) -> float:
        try:
            number = float(value)
            with np.errstate(over="ignore"):
                held = float(dtype.type(number))
        except OverflowError:  # an integer beyond all floats
            raise _refused(_named(value, " out of range"), of_type) from None
        if isinstance(value, (int, np.integer)) and held != value:
            raise _refused(_named(value, " with more digits than the type"), of_type)
        if np.isinf(held) and not np.isinf(number):
            raise _refused(_named(value, " out of range"), of_type)
        return held

    return convert


def _decimal(of_type: pa.DataType) -> Convert:
    # 76 digits are the most that a type has; a number that needs more does not fit.
    context = Context(prec=max(of_type.precision, 1), traps=[Inexact, InvalidOperation])
    exponent = Decimal((0, (1,), -of_type.scale))

    def convert(value: Any) -> Decimal:
        number = value if isinstance(value, Decimal) else Decimal(int(value))
        if not number.is_finite():
            raise _refused("a Decimal that is not finite", of_type)
        try:
            return number.quantize(exponent, context=context)
        except (Inexact, InvalidOperation):
            raise _refused(_named(value, " with more digits than the type"), of_type) from None

    return convert


def _text(_: pa.DataType) -> Convert:
    return str


def _bytes(of_type: pa.DataType) -> Convert:
    width = of_type.byte_width if pa.types.is_fixed_size_binary(of_type) else None

    def convert(value: Any) -> bytes:
        try:
            raw = value.encode() if isinstance(value, str) else bytes(value)
        except UnicodeEncodeError:
            raise _refused(_named(value, " with a lone surrogate"), of_type) from None
        if width is not None and len(raw) != width:
            raise _refused(_named(value, f" of {len(raw)} bytes"), of_type)
        return raw

    return convert


def _date(of_type: pa.DataType) -> Convert:
    def convert(value: dt.date) -> dt.date:
        if not isinstance(value, dt.datetime):
            return value
        if value != dt.datetime.combine(value.date(), dt.time()):
            raise _refused(_named(value, " with a time of day"), of_type)
        return value.date()

    return convert


def _time(of_type: pa.DataType) -> Convert:
    tick_us = {"s": 1_000_000, "ms": 1000}.get(of_type.unit, 1)

    def convert(value: dt.datetime) -> dt.datetime:
        if getattr(value, "nanosecond", 0) and of_type.unit != "ns":  # pandas' times
            raise _refused(_named(value, " with nanoseconds"), of_type)
        if value.microsecond % tick_us:
            raise _refused(_named(value, " with fractions of the type's unit"), of_type)
        return value.replace(tzinfo=dt.UTC) if of_type.tz is not None and value.tzinfo is None else value

    return convert


def _uuid(_: pa.DataType) -> Convert:
    return lambda value: value


_SCALARS: dict[Kind, Callable[[pa.DataType], Convert]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _integer,
    Kind.FLOATING: _floating,
    Kind.DECIMAL: _decimal,
    Kind.TEXT: _text,
    Kind.BYTES: _bytes,
    Kind.DATE: _date,
    Kind.INSTANT: _time,
    Kind.LOCAL_TIME: _time,
    Kind.UUID: _uuid,
}
