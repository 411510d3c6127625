"""Models of settings in which a null stands for the default.

They describe requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, create_model
from pydantic_core import core_schema

from keyscale.jobs.protocol.specification import SecretReference, Settings

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class DescribedBy:
    """Describes a field by another model than its own."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Returns the JSON schema of the model."""
        # Wrapped: pydantic refers to a model inside another schema, and would copy the model itself.
        return handler(core_schema.definitions_schema(self.model.__pydantic_core_schema__, []))


PATCHED = "Patched"


@cache
def nullable(model: type[BaseModel], prefix: str = PATCHED, required: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Returns a model of the same settings, which may all be null.

    Args:
        model: The settings.
        prefix: The beginning of the new model's name.
        required: Settings that are required, here and in the models inside.
    """
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        form = _form(field.annotation, prefix, required)
        for each in field.metadata:
            form = Annotated[form, each]
        given = Field(description=field.description)
        fields[name] = (form, given) if name in required else (form | None, Field(None, description=field.description))
    return create_model(f"{prefix}{model.__name__}", __base__=Settings, __doc__=model.__doc__, **fields)


def _form(annotation: Any, prefix: str, required: frozenset[str]) -> Any:
    """Returns a field's type with nullable settings and entries.

    A choice between models by their `type` becomes a plain choice, as a patch may leave `type` out.
    """
    if isinstance(annotation, type) and issubclass(annotation, Settings) and annotation is not SecretReference:
        own = required.intersection(annotation.model_fields)
        return nullable(annotation, prefix if own else PATCHED, own)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _form(parts[0], prefix, required)
    if origin is dict:
        return GenericAlias(dict, (parts[0], parts[1] | None))
    if origin in {Union, UnionType}:
        return reduce(or_, (_form(each, prefix, required) for each in parts))
    return annotation
