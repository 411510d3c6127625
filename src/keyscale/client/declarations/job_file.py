"""Files that declare jobs, with the line of each field."""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - a field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError

from keyscale.api.shapes import NAME_PATTERN, Labels
from keyscale.jobs.protocol.declared_settings import declared_settings
from keyscale.jobs.protocol.redaction import redact_named
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.jobs.protocol.strict_model import StrictModel

from ..errors import JobFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ENDINGS = (".yaml", ".yml")
OF_ARTIFACTS = frozenset({"artifact_id", "libraries"})
"""Fields of a specification that a file gives as `program` and `libraries`."""
ARTIFACT_ID = re.compile(r"[0-9a-f]{32}")

Place = tuple[str | int, ...]
Lines = dict[Place, int]


class JobDocument(StrictModel):
    """A job as a file declares it."""

    name: str = Field(pattern=NAME_PATTERN)
    labels: Labels = Field(default_factory=dict)
    state: Literal["RUNNING", "STOPPED"] | None = None
    program: str
    libraries: list[str] = Field(default_factory=list)
    platform_owns: list[Literal["parallelism"]] = Field(default_factory=list)
    spec: dict[str, Any] = Field(default_factory=dict)


M = TypeVar("M", JobDocument, JobSpec)


@dataclass(frozen=True, slots=True)
class Content:
    """A file that is uploaded as an artifact."""

    path: Path

    @property
    def sha256(self) -> str:
        """The hash by which the control plane knows the bytes."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared job.

    Attributes:
        name: Name of the job.
        labels: Its labels.
        state: Whether it shall run; None: as it is.
        program: Its program.
        libraries: Its libraries: files, ids of artifacts, or packages as `package:NAME`.
        owned: Settings that the platform sets, once the job exists.
        given: The settings that the file gives, as JSON.
        place: The file and line where the declaration begins.
    """

    name: str
    labels: Mapping[str, str]
    state: Literal["RUNNING", "STOPPED"] | None
    program: Content
    libraries: tuple[Content | str, ...]
    owned: frozenset[str]
    given: Mapping[str, Any]
    place: str

    @property
    def contents(self) -> list[Content]:
        """The files to upload."""
        return [self.program, *(each for each in self.libraries if isinstance(each, Content))]


def read_declarations(paths: Iterable[Path]) -> list[Declaration]:
    """Reads the jobs that files and directories declare.

    Raises:
        JobFileError: A file cannot be read, or a job is not valid.
    """
    found: dict[str, Declaration] = {}
    for path in paths:
        for file in _files(path):
            for declaration in _read_file(file):
                if (other := found.get(declaration.name)) is not None:
                    raise JobFileError(f"{declaration.place}: {other.place} declares the job {other.name} already")
                found[declaration.name] = declaration
    return list(found.values())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.rglob("*") if each.suffix in ENDINGS and each.is_file())
    files = [each for each in files if not any(part.startswith(".") for part in each.relative_to(path).parts)]
    if not files:
        raise JobFileError(f"{path}: the directory has neither .yaml nor .yml files")
    return files


def _read_file(file: Path) -> Iterator[Declaration]:
    try:
        text = file.read_text(encoding="utf-8")
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (OSError, UnicodeDecodeError) as error:
        raise JobFileError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise JobFileError(f"{file}{line}: {getattr(error, 'problem', None) or error}") from error
    for node in nodes:
        if node.tag != "tag:yaml.org,2002:null":  # between two separators, or after the last one
            yield _declaration(file, node)


def _declaration(file: Path, node: yaml.Node) -> Declaration:
    lines: Lines = {(): node.start_mark.line + 1}
    content = _plain(file, node, (), lines, ())
    document = _validated(JobDocument, content, file, lines, ())
    for name in document.spec:
        if name in OF_ARTIFACTS:
            raise JobFileError(f"{file}:{lines['spec', name]}: give `program` and `libraries` instead of spec.{name}")
    spec = _validated(JobSpec, {**document.spec, "artifact_id": "program"}, file, lines, ("spec",))
    for name, value in spec.parameters.items():
        if isinstance(value, str) and redact_named(name, value) != value:
            place = f"{file}:{lines.get(('spec', 'parameters', name), lines[()])}"
            raise JobFileError(f"{place}: the parameter {name} looks like a secret; write {{secret: NAME}}")
    program = _content(file, lines, ("program",), document.program)
    libraries = tuple(_library(file, lines, index, name) for index, name in enumerate(document.libraries))
    return Declaration(
        name=document.name,
        labels=document.labels,
        state=document.state,
        program=program,
        libraries=libraries,
        owned=frozenset(document.platform_owns),
        given=spec.model_dump(mode="json", include=set(document.spec)),
        place=f"{file}:{lines[()]}",
    )


def _library(file: Path, lines: Lines, index: int, name: str) -> Content | str:
    if name.startswith("package:") or ARTIFACT_ID.fullmatch(name):
        return name
    return _content(file, lines, ("libraries", index), name)


def _content(file: Path, lines: Lines, where: Place, name: str) -> Content:
    path = file.parent / name
    if not path.is_file():
        raise JobFileError(f"{file}:{lines[where]}: {path} is not a file")
    return Content(path)


def _plain(file: Path, node: yaml.Node, path: Place, lines: Lines, outer: tuple[yaml.Node, ...]) -> Any:
    """Returns a node's value, and notes the line of each part."""
    if any(each is node for each in outer):
        raise JobFileError(f"{file}:{node.start_mark.line + 1}: the value holds itself")
    inner = (*outer, node)
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise JobFileError(f"{file}:{line}: the name of a field is a text")
            if key.value in values:
                raise JobFileError(f"{file}:{line}: the field {key.value} is given twice")
            lines[*path, key.value] = line
            values[key.value] = _plain(file, value, (*path, key.value), lines, inner)
        return values
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[*path, index] = item.start_mark.line + 1
            items.append(_plain(file, item, (*path, index), lines, inner))
        return items
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        reason = getattr(error, "problem", None) or str(error)
        raise JobFileError(f"{file}:{node.start_mark.line + 1}: {reason}") from error


def _validated(model: type[M], content: Any, file: Path, lines: Lines, outer: Place) -> M:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        messages = [_message(model, each, file, lines, outer) for each in error.errors()]
        raise JobFileError("\n".join(messages)) from None


def _message(model: type[JobDocument | JobSpec], error: Any, file: Path, lines: Lines, outer: Place) -> str:
    path = outer
    for part in error["loc"]:  # which also names the type of a restart strategy
        path = (*path, part) if (*path, part) in lines else path
    field = ".".join(str(each) for each in (*outer, *error["loc"]))
    text = error["msg"]
    if error["type"] == "extra_forbidden":
        text = f"the field is unknown{_nearest(str(path[-1]), _fields_beside(model, path[len(outer) : -1]))}"
    return f"{file}:{lines[path]}: {field}: {text}" if field else f"{file}:{lines[path]}: {text}"


def _fields_beside(model: type[JobDocument | JobSpec], parent: Place) -> Iterable[str]:
    """Returns the fields that a part of a document may have."""
    if not parent:
        return model.model_fields
    within = ".".join(map(str, parent)) + "."
    paths = (setting.path for setting in declared_settings())
    return {path.removeprefix(within).partition(".")[0] for path in paths if path.startswith(within)}


def _nearest(name: str, names: Iterable[str]) -> str:
    close: Sequence[str] = difflib.get_close_matches(name, list(names), n=1)
    return f"; do you mean {close[0]}?" if close else ""
