"""From where a job restores, as a request says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import ConfigDict, Field, Strict, model_validator

from keyscale.vocabulary import ClaimMode

from ...shapes import NUMBER_MAX, Request, only_if

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

_SOURCES = ("checkpoint_id", "savepoint_id", "location", "before_ms", "latest")


class RestoreSource(Request):
    """A checkpoint or savepoint, of the job itself or of another job.

    Exactly one field besides `job` names it.
    """

    job: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="Id or name of the job that took it. Default: the job itself."
    )
    checkpoint_id: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = Field(
        default=None, description="Number of a COMPLETED checkpoint or savepoint."
    )
    savepoint_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    location: Annotated[str, Field(max_length=2000)] | None = Field(
        default=None, description="Location of a manifest in the job's store."
    )
    before_ms: Annotated[int, Field(ge=0, le=NUMBER_MAX)] | None = Field(
        default=None, description="The newest snapshot that was complete before this time, in milliseconds since 1970."
    )
    latest: bool = Field(default=False, description="The newest snapshot.")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describes a form for each field that names the snapshot."""
        found = handler.resolve_ref_schema(handler(schema))
        fields = found.pop("properties")
        del found["additionalProperties"]
        found["oneOf"] = [_form(name, fields) for name in _SOURCES]
        return found

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        given = [name for name in _SOURCES if getattr(self, name) is not None and getattr(self, name) is not False]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(_SOURCES)}")
        if self.location is not None and self.job is not None:
            raise ValueError("a location names the job already")
        return self


def _form(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema of a source with a given field."""
    field = dict(fields[name])
    field.pop("default", None)
    given = {"const": True} if name == "latest" else field.pop("anyOf")[0]
    properties = {name: {**field, **given}}
    return {
        "type": "object",
        "title": f"RestoreBy{name.title().replace('_', '')}",
        "properties": properties if name == "location" else {"job": fields["job"], **properties},
        "required": [name],
        "additionalProperties": False,
    }


CLAIM_NEEDS_SOURCE = only_if(
    "claim_mode", "CLAIM", {"properties": {"restore_from": {"type": "object"}}, "required": ["restore_from"]}
)
"""A rule of the schemas of requests to restore."""

SOURCE_NAMES_ITS_JOB: dict[str, Any] = {
    "not": {
        "properties": {
            "restore_from": {
                "type": "object",
                "properties": {"job": {"type": "null"}},
                "not": {"required": ["location"]},
            }
        },
        "required": ["restore_from"],
    }
}
"""A rule of the schema of a request for a new job, which has no snapshots itself."""


class RestoreRequest(Request):
    """How a start restores.

    The base of requests that may start a job.
    """

    model_config = ConfigDict(json_schema_extra=CLAIM_NEEDS_SOURCE)

    restore_from: RestoreSource | None = Field(
        default=None,
        description=(
            "Start from exactly this state, with its positions; later commits of the job are disowned. Default, and"
            " with `latest` of the job itself: from all commits of the job."
        ),
    )
    claim_mode: Annotated[ClaimMode, Strict(False)] = Field(
        default=ClaimMode.NO_CLAIM,
        description="CLAIM: the savepoint of restore_from becomes the job's own, and is deleted when it is subsumed.",
    )
    allow_non_restored_state: bool = Field(
        default=False, description="Drop state that the program no longer has; otherwise such a start fails."
    )
