"""The base of requests and of the settings inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .storable_text import is_storable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo


class StrictModel(BaseModel):
    """The base of values that users choose.

    An unknown field is an error, so that a misspelt option is not silently ignored. So are `true` in place of a number,
    and text that cannot be stored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unfit(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        found = ((name, _unfit(values[name], field)) for name, field in cls.model_fields.items() if name in values)
        errors: list[InitErrorDetails] = [
            {"type": PydanticCustomError("unfit", reason), "loc": (name,), "input": None}
            for name, reason in found
            if reason is not None
        ]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return values


def _unfit(value: Any, field: FieldInfo) -> LiteralString | None:
    """Returns why a field rejects a value; None if it accepts it."""
    if isinstance(value, bool) and not {bool, Any} & {field.annotation, *get_args(field.annotation)}:
        return "It is true or false, where another type is expected"
    if not all(is_storable(text) for text in _texts(value)):
        return "It holds a NUL or a lone surrogate, which cannot be stored"
    return None


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
