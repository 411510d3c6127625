"""The options that set a job's specification."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .artifacts import upload_file, upload_libraries
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.client.keyscale import Keyscale


class Pair(click.ParamType[tuple[str, str]]):
    """A `key=value` argument."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Splits at the first equals sign."""
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key, text


def specification_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that set a job's specification.

    `specification_of` makes the request of them.
    """
    for option in reversed(
        (
            click.option("--artifact", "artifact_id", help="Id of an uploaded artifact: the program."),
            click.option("--file", type=click.Path(path_type=Path), help="Upload this file: the program."),
            click.option(
                "--library",
                "libraries",
                multiple=True,
                help=(
                    "A library that the program imports: a .py, .zip, .whl or .jar file to upload, the id of an"
                    " uploaded library, or a package of the platform's jars as package:NAME. May be repeated; the"
                    " given libraries replace all libraries of the job."
                ),
            ),
            click.option(
                "--requirements",
                type=click.Path(path_type=Path),
                help="Upload and use the wheels of a pip requirements file, with all that they need.",
            ),
            click.option("--parallelism", "-p", type=int, help="Subtasks per operator."),
            click.option(
                "--parameter",
                "-P",
                "parameters",
                type=Pair(),
                multiple=True,
                help="A parameter of the script, key=value.",
            ),
            click.option(
                "--secret",
                "secrets",
                multiple=True,
                help=(
                    "Name of a secret that the script reads. May be repeated; the given secrets replace all secrets of"
                    " the job."
                ),
            ),
            click.option(
                "--set",
                "values",
                type=Pair(),
                multiple=True,
                metavar="PATH=VALUE",
                help="A setting, such as checkpoints.interval_ms=30000. `jobs settings` lists them. May be repeated.",
            ),
            click.option(
                "--unset",
                "unset",
                multiple=True,
                metavar="PATH",
                help="Reset a setting to its default, or remove an entry.",
            ),
        )
    ):
        command = option(command)
    return command


def specification_of(
    control_plane: Keyscale,
    *,
    artifact_id: str | None = None,
    file: Path | None = None,
    libraries: Sequence[str] = (),
    requirements: Path | None = None,
    parallelism: int | None = None,
    parameters: Sequence[tuple[str, str]] = (),
    secrets: Sequence[str] = (),
    values: Sequence[tuple[str, str]] = (),
    unset: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the given part of a specification, a merge patch; uploads files."""
    if artifact_id is not None and file is not None:
        raise InvalidArgumentError("give either --artifact or --file")
    spec: dict[str, Any] = {}
    if values or unset:
        settings = control_plane.get("/v1/settings")["settings"]
        for path, text in values:
            setting, parts = setting_of(settings, path)
            if setting is None:
                inside = ", ".join(each["path"] for each in settings if each["path"].startswith(f"{path}."))
                raise InvalidArgumentError(f"{path} has parts: {inside}")
            place(spec, parts, value_of(setting, path, text))
        for path in unset:
            place(spec, setting_of(settings, path)[1], None)
    if file is not None:
        artifact_id = upload_file(control_plane, file)["id"]
    brings = bool(libraries) or requirements is not None
    short = {
        "artifact_id": artifact_id,
        "libraries": upload_libraries(control_plane, libraries, requirements) if brings else None,
        "parallelism": parallelism,
        "secrets": list(secrets) or None,
    }
    spec |= {name: value for name, value in short.items() if value is not None}
    for name, text in parameters:
        place(spec, ("parameters", name), text)
    return spec


def place(spec: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Stores a value at its place in a specification."""
    *outer, last = path
    for name in outer:
        spec = spec.setdefault(name, {})
    spec[last] = value


def setting_of(settings: Sequence[dict[str, Any]], path: str) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Returns the setting at a path, and the parts of the path.

    A path of several settings has none.

    The name of an entry may have dots.

    Raises:
        InvalidArgumentError: A job does not have such a setting. The message names the nearest one.
    """
    for setting in sorted(settings, key=lambda each: len(each["path"]), reverse=True):
        found = re.fullmatch(re.escape(setting["path"]).replace(r"\*", "(.+)"), path)
        if found is not None:
            return setting, tuple(found[1] if part == "*" else part for part in setting["path"].split("."))
    if any(each["path"].startswith(f"{path}.") for each in settings):
        return None, tuple(path.split("."))
    nearest = difflib.get_close_matches(path, [each["path"] for each in settings], n=1, cutoff=0.3)
    hint = f"; do you mean {nearest[0]}?" if nearest else ""
    raise InvalidArgumentError(f"a job does not have the setting {path}{hint}")


def value_of(setting: dict[str, Any], path: str, text: str) -> Any:
    """Returns the value of a setting that a text stands for.

    Raises:
        InvalidArgumentError: The text is not of the type of the setting.
    """
    if setting["choices"] and text not in setting["choices"]:
        raise InvalidArgumentError(f"{path} is one of {', '.join(setting['choices'])}, not {text!r}")
    try:
        return _READ[setting["type"]](text)
    except ValueError:
        raise InvalidArgumentError(f"{path} is of type {setting['type']}, not {text!r}") from None


_READ: dict[str, Callable[[str], Any]] = {
    "integer": lambda text: int(text.replace("_", "")),
    "number": float,
    "string": str,
    "array": lambda text: [each.strip() for each in text.split(",") if each.strip()],
}
