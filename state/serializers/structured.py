"""Values that are instances of a `msgspec.Struct` class: stored as an Arrow struct, so that schemas evolve as any other's."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from state.errors import CorruptValueError, SerializationError, UnsupportedTypeError

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
    """The type of a state's values that are instances of a class, as in `ValueStateDescriptor("order", Structured(Order))`.

    Stored as the Arrow struct of the class's fields, by their encoded names: a field that is added later needs a default or must
    allow None. Batch forms take and give columns of that struct, not instances.
    """

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        """For values of a class.

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
        """An instance, or anything with instances in it, as dicts and lists.

        Raises:
            SerializationError: It holds what is no instance.
        """
        try:
            return msgspec.to_builtins(value, builtin_types=_KEPT)
        except (TypeError, ValueError) as error:
            message = f"a {type(value).__name__} is no {self.struct.__name__}"
            raise SerializationError(message) from error

    def encodable(self, value: Any) -> Any:
        """An instance as what the struct's serializer takes; what is a dict already stays one.

        Raises:
            SerializationError: It is an instance of another class.
        """
        if not isinstance(value, (self.struct, dict)):
            message = f"a {type(value).__name__} is no {self.struct.__name__}"
            raise SerializationError(message)
        return self.plain(value)

    def instance(self, value: Any) -> Any:
        """From the struct as a dict to an instance; None stays None.

        Raises:
            CorruptValueError: The class does not take it.
        """
        if value is None:
            return None
        try:
            return msgspec.convert(self._prepare(value), self.struct)
        except msgspec.ValidationError as error:
            message = f"a stored value is no {self.struct.__name__}: a field without default may have been added"
            raise CorruptValueError(message) from error


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
                message = (
                    f"{inner.cls.__name__} is tagged, array-like or omits defaults, so it cannot be stored as a struct"
                )
                raise UnsupportedTypeError(message)
            return pa.struct([(field.encode_name, _arrow_type(field.type)) for field in inner.fields])
        case _ if isinstance(inner, _LISTS):
            return pa.list_(_arrow_type(inner.item_type))
        case _:
            message = (
                f"{type(inner).__name__} of msgspec cannot be the type of a stored field; "
                "datetimes can if msgspec.Meta(tz=...) says whether they have time zones"
            )
            raise UnsupportedTypeError(message)


def _preparation(info: inspect.Type) -> Callable[[Any], Any]:
    """Leaves out nulls of fields that do not allow them: they were added, and get their defaults."""
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
    """A type without None, and whether it allowed it."""
    if not isinstance(info, inspect.UnionType):
        return info, False
    kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
    if len(kinds) != 1:
        message = "a union of several types cannot be the type of a stored field"
        raise UnsupportedTypeError(message)
    return kinds[0], info.includes_none
