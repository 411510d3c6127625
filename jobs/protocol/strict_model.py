"""The base of requests and of the settings inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .storable_text import is_storable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

_UNFIT = "It holds a NUL or a lone surrogate, which cannot be stored"


class StrictModel(BaseModel):
    """The base of values that users choose.

    An unknown field is an error, so that a misspelt option is not silently ignored. So is a value of another type, such
    as `"2"` or `true` in place of a number and `0` in place of `false`, and text that cannot be stored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unfit(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        errors: list[InitErrorDetails] = [
            {"type": PydanticCustomError("unfit", _UNFIT), "loc": (name,), "input": None}
            for name in cls.model_fields.keys() & values.keys()
            if not all(is_storable(text) for text in _texts(values[name]))
        ]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return {name: _number(value, cls.model_fields.get(name)) for name, value in values.items()}


def _number(value: Any, field: FieldInfo | None) -> Any:
    """Returns a whole number as an integer.

    JSON has one kind of number, so that 4.0 is 4. A field of any value keeps the number.
    """
    if field is None or field.annotation is Any or not isinstance(value, float) or not value.is_integer():
        return value
    return int(value)


def _texts(value: Any) -> Iterator[str]:
    """Yields the text of a value, including its keys and nested values.

    A value may be nested as deeply as JSON can be parsed, so the function does not call itself.
    """
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
