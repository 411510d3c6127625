"""Instances of `msgspec.Struct` classes, stored as Arrow structs.

They have the same schema evolution as Arrow structs.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from ..errors import CorruptValueError, SerializationError, UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

_SIMPLE: dict[type[inspect.Type], pa.DataType] = {
    inspect.BoolType: pa.bool_(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.StrType: pa.string(),
    inspect.BytesType: pa.binary(),
    inspect.ByteArrayType: pa.binary(),
    inspect.DateType: pa.date32(),
}
_KEPT = (bytes, bytearray, dt.datetime, dt.date)
_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


class Structured(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types here
    """The type of instances, as in `ValueStateDescriptor("order", Structured(Order))`.

    They are stored as the Arrow struct of the class's fields, by their encoded names: a field that is added later needs
    a default or must allow None. Batch methods take and return columns of that struct, not instances.
    """

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        """Creates the type of a class's instances.

        Raises:
            UnsupportedTypeError: A field's type cannot be stored, or the class is tagged, array-like or omits defaults.
        """
        self.struct = struct
        info = inspect.type_info(struct)
        super().__init__(_arrow_type(info), "keyscale.struct")
        self._prepare = _preparation(info)

    def __hash__(self) -> int:
        return hash(self.struct)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Structured, (self.struct,))

    def __arrow_ext_serialize__(self) -> bytes:
        return f"{self.struct.__module__}.{self.struct.__qualname__}".encode()

    def plain(self, value: Any) -> Any:
        """Converts instances, also in lists and dicts, to dicts and lists.

        Raises:
            SerializationError: The value contains something that cannot be converted.
        """
        try:
            return msgspec.to_builtins(value, builtin_types=_KEPT)
        except (TypeError, ValueError) as error:
            raise SerializationError(f"a {type(value).__name__} is not a {self.struct.__name__}") from error

    def encodable(self, value: Any) -> Any:
        """Converts an instance, or a dict, to a dict for the serializer.

        Raises:
            SerializationError: The value is an instance of another class.
        """
        if not isinstance(value, (self.struct, dict)):
            raise SerializationError(f"a {type(value).__name__} is not a {self.struct.__name__}")
        return self.plain(value)

    def instance(self, value: Any) -> Any:
        """Converts a dict of the struct to an instance; None stays None.

        Raises:
            CorruptValueError: The class does not accept the dict.
        """
        if value is None:
            return None
        try:
            return msgspec.convert(self._prepare(value), self.struct)
        except msgspec.ValidationError as error:
            raise CorruptValueError(
                f"a stored value is not a {self.struct.__name__}: a field without a default may have been added"
            ) from error


def _arrow_type(info: inspect.Type) -> pa.DataType:
    inner, _ = _without_none(info)
    if type(inner) in _SIMPLE:
        return _SIMPLE[type(inner)]
    match inner:
        case inspect.DateTimeType(tz=bool()):
            return pa.timestamp("us", "UTC" if inner.tz else None)
        case inspect.DictType():
            return pa.map_(_arrow_type(inner.key_type), _arrow_type(inner.value_type))
        case inspect.StructType():
            config = inner.cls.__struct_config__
            if config.array_like or config.tag is not None or config.omit_defaults:
                raise UnsupportedTypeError(
                    f"{inner.cls.__name__} is tagged, array-like or omits defaults, so it cannot be stored as a struct"
                )
            return pa.struct([(field.encode_name, _arrow_type(field.type)) for field in inner.fields])
        case _ if isinstance(inner, _LISTS):
            return pa.list_(_arrow_type(inner.item_type))
        case _:
            raise UnsupportedTypeError(
                f"{type(inner).__name__} of msgspec cannot be the type of a stored field; "
                "datetimes can if msgspec.Meta(tz=...) says whether they have time zones"
            )


def _preparation(info: inspect.Type) -> Callable[[Any], Any]:
    """Returns a function that drops disallowed nulls of fields.

    Such fields were added later; they get their defaults.
    """
    inner, _ = _without_none(info)
    prepare: Callable[[Any], Any]
    match inner:
        case inspect.StructType():
            fields = [
                (field.encode_name, _without_none(field.type)[1], _preparation(field.type)) for field in inner.fields
            ]

            def prepare(value: Any) -> Any:
                return {
                    name: each(value[name]) for name, nullable, each in fields if nullable or value[name] is not None
                }

        case inspect.DictType():
            item = _preparation(inner.value_type)

            def prepare(value: Any) -> Any:
                return {key: item(each) for key, each in value.items()}

        case _ if isinstance(inner, _LISTS):
            element = _preparation(inner.item_type)

            def prepare(value: Any) -> Any:
                return [element(each) for each in value]

        case _:
            return lambda value: value
    return lambda value: None if value is None else prepare(value)


def _without_none(info: inspect.Type) -> tuple[inspect.Type, bool]:
    """Returns a type without None, and whether the type allowed None."""
    if not isinstance(info, inspect.UnionType):
        return info, False
    kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
    if len(kinds) != 1:
        raise UnsupportedTypeError("a union of several types cannot be the type of a stored field")
    return kinds[0], info.includes_none
