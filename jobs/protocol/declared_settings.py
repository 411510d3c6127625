"""The settings of a specification as a flat list.

Forms, options of commands and the reference are made of it. Pure. It follows from the JSON schema of `JobSpec`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .specification import CHANGE_CLASS, ChangeClass, JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY = "*"
"""Stands in a path for the name of an entry that a user chooses."""


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A setting that holds one value.

    Attributes:
        path: Its place in the specification, such as `checkpoints.interval_ms`, or `parameters.*` for entries.
        type: The type in JSON: integer, number, string or array.
        change_class: When a running job takes over another value.
        description: What the setting is for.
        default: The value that applies if the user gives none.
        minimum: The least number.
        maximum: The largest number.
        choices: All values that are allowed; empty for no such limit.
        of_types: The types of the setting that holds it, such as `fixed-delay` of `restart`; empty for all.
    """

    path: str
    type: str
    change_class: ChangeClass
    description: str
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    of_types: tuple[str, ...] = ()


def declared_settings() -> tuple[DeclaredSetting, ...]:
    """Returns all settings, in the order of their declaration."""
    schema = JobSpec.model_json_schema()
    fields = JobSpec.model_fields
    derived = {
        name: None for name in fields if fields[name].is_required() or fields[name].default_factory_takes_validated_data
    }
    defaults = {**JobSpec(artifact_id="").given(), **derived}
    found: dict[str, DeclaredSetting] = {}
    for name, form in schema["properties"].items():
        for each in _settings(name, form, schema["$defs"], ChangeClass(form[CHANGE_CLASS]), defaults[name]):
            known = found.get(each.path)
            of_types = each.of_types if known is None else known.of_types + each.of_types
            found[each.path] = replace(known or each, of_types=of_types)
    return tuple(found.values())


def _settings(
    path: str, form: dict[str, Any], models: dict[str, Any], change_class: ChangeClass, default: Any
) -> Iterator[DeclaredSetting]:
    resolved = _resolved(form, models)
    change_class = ChangeClass(resolved.get(CHANGE_CLASS, change_class))
    if "oneOf" in resolved:
        yield from _settings_of_types(path, resolved, models, change_class)
    elif "properties" in resolved:
        for name, part in resolved["properties"].items():
            yield from _settings(f"{path}.{name}", part, models, change_class, part.get("default"))
    elif resolved["type"] == "object":
        yield from _entries(f"{path}.{ENTRY}", resolved, models, change_class)
    else:
        yield DeclaredSetting(
            path,
            resolved["type"],
            change_class,
            resolved.get("description", ""),
            default,
            resolved.get("minimum"),
            resolved.get("maximum"),
            tuple(resolved.get("enum", ())),
        )


def _entries(
    path: str, form: dict[str, Any], models: dict[str, Any], change_class: ChangeClass
) -> Iterator[DeclaredSetting]:
    """Yields the settings of one entry.

    They are its text, and the parts of a value in its place.
    """
    value = form["additionalProperties"]
    yield DeclaredSetting(path, "string", change_class, form["description"])
    for part in value.get("anyOf", ()):
        if "$ref" in part:
            yield from _settings(path, part, models, change_class, None)


def _settings_of_types(
    path: str, form: dict[str, Any], models: dict[str, Any], change_class: ChangeClass
) -> Iterator[DeclaredSetting]:
    types = tuple(form["discriminator"]["mapping"])
    yield DeclaredSetting(f"{path}.type", "string", change_class, form["description"], choices=types)
    for type_, reference in form["discriminator"]["mapping"].items():
        for name, part in _resolved({"$ref": reference}, models)["properties"].items():
            if name != "type":
                for each in _settings(f"{path}.{name}", part, models, change_class, part.get("default")):
                    yield replace(each, of_types=(type_,))


def _resolved(form: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    """Returns the form of a value, with referred models in place.

    A null is left out.
    """
    parts = [each for each in form.get("anyOf", ()) if each.get("type") != "null"]
    if len(parts) == 1:
        form = {**parts[0], **{name: value for name, value in form.items() if name != "anyOf"}}
    if "$ref" in form:
        form = {**models[form["$ref"].rpartition("/")[2]], **{name: form[name] for name in form if name != "$ref"}}
    return form
