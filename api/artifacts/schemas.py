"""Artifacts: uploaded programs, and checks of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from keyscale.jobs.protocol.specification import ProgramSettings
from keyscale.vocabulary import ArtifactKind

from ..jobs.schemas.job_spec import without_nulls
from ..jobs.schemas.nullable_settings import nullable
from ..shapes import Answer, FailureAnswer, ListAnswer, Request, example

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


class ArtifactAnswer(Answer):
    """One immutable version of an uploaded file."""

    model_config = example(
        id="5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d",
        name="departures",
        version=1,
        filename="departures.py",
        kind="PYTHON",
        sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        size_bytes=2411,
        created_at_ms=1_795_000_000_000,
        uploaded_by="ada",
        used_by=["departures"],
    )

    id: str
    name: str
    version: int
    filename: str
    kind: ArtifactKind
    sha256: str
    size_bytes: int
    created_at_ms: int
    uploaded_by: str | None = Field(description="Name of the user who uploaded it; null once its event is forgotten.")
    used_by: list[str] = Field(description="Names of the jobs with a revision that uses it, if the user may see them.")


class PlatformAnswer(Answer):
    """The Python, the system and the packages that every job has."""

    model_config = example(
        python_version="3.11.7",
        platforms=["linux_x86_64", "manylinux_2_36_x86_64"],
        packages={"numpy": "2.4.6", "pyspark": "4.3.0"},
        jar_packages=["kafka"],
    )

    python_version: str
    platforms: list[str] = Field(description="Names of the operating system in the tags of wheels that fit.")
    packages: dict[str, str] = Field(
        description=("Versions of the platform's own packages; a job cannot bring other versions.")
    )
    jar_packages: list[str] = Field(description="Packages of jars, which a job names as `package:NAME`.")


class ArtifactList(ListAnswer):
    """All artifacts, the newest first."""

    artifacts: list[ArtifactAnswer]


class ProgramCheckRequest(ProgramSettings, Request):
    """The settings to load a program with.

    A null stands for the default.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        return without_nulls(values, cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describes the request by the settings that may be null."""
        fields: Any = nullable(ProgramSettings).__pydantic_core_schema__
        shown = {"title": cls.__name__, "description": cls.__doc__, "additionalProperties": False}
        return {**handler(fields["schema"]), **shown}


class DeclaredStateAnswer(Answer):
    """A state that an operator declares when it is opened."""

    name: str
    kind: str = Field(description="value, map, list, reducing, aggregating, or a kind of operator state.")
    declared: str | None = Field(description="Its kind and types as text; null if it has no types.")
    ttl_ms: int | None = Field(description="Its time to live.")


class KeyColumnAnswer(Answer):
    """A column of an operator's key."""

    name: str
    type: str


class DeclaredOperatorAnswer(Answer):
    """An operator that a program declares."""

    uid: str
    kind: str | None = Field(description="Its kind, such as Process or Deduplicate.")
    key: list[KeyColumnAnswer]
    states: list[DeclaredStateAnswer]


class DeclaredEndpointAnswer(Answer):
    """A source or a sink that a program declares."""

    uid: str
    kind: str


class ProgramCheckAnswer(Answer):
    """Everything that a program declares, or why it cannot be loaded."""

    model_config = example(
        valid=True,
        failure=None,
        operators=[
            {
                "uid": "totals",
                "kind": "Process",
                "key": [{"name": "user", "type": "string"}],
                "states": [{"name": "total", "kind": "value", "declared": "value of int64", "ttl_ms": None}],
            }
        ],
        sources=[{"uid": "orders", "kind": "kafka"}],
        sinks=[{"uid": "files", "kind": "FileSink"}],
    )

    valid: bool = Field(description="Whether a job can start with the program.")
    failure: FailureAnswer | None = Field(description="Why the program cannot be loaded.")
    operators: list[DeclaredOperatorAnswer]
    sources: list[DeclaredEndpointAnswer]
    sinks: list[DeclaredEndpointAnswer]
